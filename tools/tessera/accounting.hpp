// Bytes per rank by formula, from numbers of parameters alone: docs/numerics.md's, and those of the ZeRO paper
// (Rajbhandari et al. 2020, figure 1).
#pragma once

#include <cstddef>

#include "tessera/plan/plan.hpp"

namespace tools {

// Everything in half precision but the optimizer: 2 bytes for a parameter, 2 for its gradient, 12 for Adam's states.
double zero_paper_bytes(tessera::Strategy strategy, double parameters, std::size_t ranks);

struct Parameters {
  double trained;
  double frozen = 0;
};

// What persists on a rank, without slots, staging, activations and padding, with so many fp32 states per parameter.
// All units count as of the plan's precision. Reads strategy, ranks, precision, micro_batches and accumulation.
double persistent_bytes(const Parameters& parameters, const tessera::plan::PlanOptions& options, std::size_t states);

}  // namespace tools
