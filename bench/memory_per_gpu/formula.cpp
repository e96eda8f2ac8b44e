// The table's rows.
#include "memory_per_gpu/formula.hpp"

#include "tessera/base/error.hpp"

namespace bench {

using tessera::Strategy;

namespace {

// zero1 keeps whole sums of several micro-batches; with one it is zero2.
bool keeps_whole_sums(const FormulaInput& input) {
  return input.strategy == Strategy::zero1 && input.micro_batches > 1;
}

}  // namespace

double bytes_per_parameter(const FormulaInput& input) {
  const auto n = static_cast<double>(input.ranks);
  switch (input.strategy) {
    case Strategy::ddp: return input.mixed ? 18 : 16;
    case Strategy::zero1:
    case Strategy::zero2:
      if (keeps_whole_sums(input)) return input.mixed ? 6 + 12 / n : 8 + 8 / n;
      return input.mixed ? 2 + 16 / n : 4 + 12 / n;
    case Strategy::fsdp: return 16 / n;
  }
  throw tessera::InternalError("a strategy without a formula");
}

double bytes_per_parameter_in_the_paper(const FormulaInput& input) {
  const auto n = static_cast<double>(input.ranks);
  switch (input.strategy) {
    case Strategy::ddp: return 16;
    case Strategy::zero1: return 4 + 12 / n;
    case Strategy::zero2: return 2 + 14 / n;
    case Strategy::fsdp: return 16 / n;
  }
  throw tessera::InternalError("a strategy without a formula");
}

}  // namespace bench
