// Bytes of a rank for each parameter, of no model in particular: what a plan says of one, and the ZeRO paper
// (Rajbhandari et al. 2020, figure 1).
#pragma once

#include <string>
#include <vector>

#include "tessera/plan/memory.hpp"
#include "tessera/plan/strategy.hpp"

namespace models {

// Parameters, gradients, optimizer states and sums of micro-batches: what stays from step to step.
tessera::Bytes persistent(const tessera::plan::MemoryReport& memory);

// The same for one trained parameter, without padding. Reads strategy, ranks, replicas, precision, micro_batches and
// accumulation.
double persistent_per_parameter(tessera::plan::PlanOptions options,
                                const std::vector<tessera::plan::StateSpec>& optimizer_states);

// Everything in half precision but the optimizer: 2 bytes for a parameter, 2 for its gradient, 12 for Adam's states.
double zero_paper_per_parameter(const tessera::Strategy& strategy, std::size_t ranks, std::size_t replicas);

}  // namespace models
