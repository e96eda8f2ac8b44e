// The terms of docs/numerics.md, one by one.
#include "accounting.hpp"

namespace tools {

using tessera::AccumulationMode;
using tessera::Strategy;

double zero_paper_bytes(Strategy strategy, double parameters, std::size_t ranks) {
  const double n = static_cast<double>(ranks);
  switch (strategy) {
    case Strategy::ddp: return parameters * 16.0;
    case Strategy::zero1: return parameters * (4.0 + 12.0 / n);
    case Strategy::zero2: return parameters * (2.0 + 14.0 / n);
    case Strategy::fsdp: return parameters * 16.0 / n;
  }
  return 0.0;
}

namespace {

// Several micro-batches add up on the rank.
bool adds_up_locally(const tessera::plan::PlanOptions& options) {
  if (options.micro_batches == 1) return false;
  if (options.accumulation != AccumulationMode::automatic) return options.accumulation == AccumulationMode::local;
  return options.strategy == Strategy::ddp || options.strategy == Strategy::zero1;
}

// The master, and the copy that windows read where it is another.
double bytes_to_compute(const tessera::plan::PlanOptions& options, double n) {
  const double parameter = static_cast<double>(size_of(options.precision.parameter).count());
  const bool reads_masters = parameter == 4.0;
  if (options.strategy == Strategy::fsdp) return 4.0 / n;
  if (reads_masters) return 4.0;
  return parameter + (options.strategy == Strategy::ddp ? 4.0 : 4.0 / n);
}

}  // namespace

double persistent_bytes(const Parameters& parameters, const tessera::plan::PlanOptions& options, std::size_t states) {
  const double n = static_cast<double>(options.ranks);
  const bool whole_update = options.strategy == Strategy::ddp;
  const bool local = adds_up_locally(options);
  const bool sum_in_place = local && (whole_update || options.strategy == Strategy::zero1);
  const double gradient = whole_update || sum_in_place ? 4.0 : 4.0 / n;
  const double sum = local && !sum_in_place ? 4.0 : 0.0;
  const double all_states = 4.0 * static_cast<double>(states) / (whole_update ? 1.0 : n);
  return (parameters.trained + parameters.frozen) * bytes_to_compute(options, n) +
         parameters.trained * (gradient + sum + all_states);
}

}  // namespace tools
