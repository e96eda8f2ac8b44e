// Persistent bytes per trained parameter with Adam, as docs/numerics.md has them in its table, at each strategy's
// default accumulation mode.
#pragma once

#include <cstddef>

#include "tessera/plan/strategy.hpp"

namespace bench {

struct FormulaInput {
  tessera::Strategy strategy;
  bool mixed;  // bf16 or fp16 parameters and gradients
  std::size_t ranks;
  std::size_t micro_batches;
};

double bytes_per_parameter(const FormulaInput& input);

// Rajbhandari et al., "ZeRO" (SC'20), section 5: everything in half precision but the optimizer, whatever input.mixed.
double bytes_per_parameter_in_the_paper(const FormulaInput& input);

}  // namespace bench
