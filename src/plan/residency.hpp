// Which unit is whole in which slot, and when: slots by colouring, gathers as early as the prefetch depth allows,
// releases as soon as the content is not used again.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "tessera/plan/plan.hpp"

namespace tessera::plan {

// When a unit is gathered, and how long it stays.
struct Gathering {
  std::size_t prefetch;  // so many windows ahead
  bool keep;             // no reshard after forward: in a micro-batch whole from its first window to its last
};

std::vector<Gathering> gathering(const Plan& plan);  // by unit

// Slot of each unit for its parameters, the same in every segment of every program. Units that are gathered at the same
// time get different slots.
std::vector<std::size_t> parameter_slots(std::span<const Program> programs, const std::vector<Gathering>& units);

// A Residency says what happens around the window at one position of a sequence.
struct Residency {
  bool gather = false;            // not whole from an earlier window: gather first
  std::size_t gather_before = 0;  // … and issue that before the window at this position
  bool first_gather = false;      // of its unit in the sequence
  bool last_gather = false;
  bool release_after = false;  // the last window of this tenancy
};
std::vector<Residency> residency(const std::vector<WindowUse>& windows, const std::vector<std::size_t>& slots,
                                 const std::vector<Gathering>& units);
// The windows that gather, in the order in which they do.
std::vector<std::size_t> gathering_windows(const std::vector<Residency>& stays);

// Slot of each unit for its gradient. A unit holds it from its backward window to the end of what consumes it: a sum on
// the compute stream, or an operation of the reduce stream that follows backward window `taken_after` (counted in the
// order in which they close) and with `overlap` runs beside the next one. Units without a backward window get no_slot.
// Micro-batches are those of programs, each with the windows of the units that it trains.
inline constexpr std::size_t no_slot = static_cast<std::size_t>(-1);
std::vector<std::size_t> gradient_slots(std::span<const std::vector<WindowUse>> micro_batches,
                                        const std::vector<std::optional<std::size_t>>& taken_after, bool overlap);

}  // namespace tessera::plan
