// A unit has its slot from the opening of its forward window to its close, and again from its first recompute or
// backward window to the close of its last. Whoever has the slot in between drives it out.
#include "plan/saved.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "tessera/base/error.hpp"

namespace tessera::plan {

namespace {

struct Stay {
  std::size_t unit;
  std::size_t begin;
  std::size_t end;  // position of the last window, which closes there
};

// Returns the stays of the units with slots, in the order of their begins.
std::vector<Stay> stays_in_slots(const Plan& plan, const std::vector<WindowUse>& windows) {
  std::vector<Stay> result;
  std::vector<std::optional<std::size_t>> open(plan.units.size());  // by unit: the stay that goes on
  std::vector<bool> went_forward(plan.units.size(), false);
  for (std::size_t position = 0; position < windows.size(); ++position) {
    const WindowUse& use = windows[position];
    if (plan.units[use.unit].saved_in == MemorySpace::device || use.kind == WindowKind::evaluate) continue;
    const bool forward = use.kind == WindowKind::forward;
    const bool opens = forward && !use.resumes;
    if (opens && went_forward[use.unit]) {
      throw UsageError(fmt::format(
          "unit {} saves activations in the host's memory, and has more than one forward window: one window "
          "leaves them to one (UnitOptions::saved)",
          plan.units[use.unit].name));
    }
    went_forward[use.unit] = went_forward[use.unit] || opens;
    const bool begins = opens || (!forward && !open[use.unit]);
    if (begins) {
      open[use.unit] = result.size();
      result.push_back({use.unit, position, position});
    }
    result[*open[use.unit]].end = position;
    const bool goes_on = std::any_of(windows.begin() + static_cast<std::ptrdiff_t>(position) + 1, windows.end(),
                                     [&](const WindowUse& later) {
                                       return later.unit == use.unit && (later.resumes || !forward) &&
                                              (later.kind == WindowKind::forward) == forward;
                                     });
    if (!goes_on) open[use.unit].reset();
  }
  return result;
}

}  // namespace

SavedMoves saved_moves(const Plan& plan, const std::vector<WindowUse>& windows) {
  SavedMoves result{std::vector<SavedMoves::Window>(windows.size())};
  const std::vector<Stay> stays = stays_in_slots(plan, windows);
  for (auto stay = stays.begin(); stay != stays.end(); ++stay) {
    const auto slot_of = [&](const Stay& of) { return plan.unit_buffers[of.unit][Role::saved].buffer; };
    const auto next = std::find_if(stay + 1, stays.end(), [&](const Stay& other) { return other.unit == stay->unit; });
    const Stay* before_next = nullptr;  // the last other one of the slot
    for (auto other = stay + 1; other != stays.end() && other != next; ++other) {
      if (slot_of(*other) != slot_of(*stay) || other->unit == stay->unit) continue;
      if (other->begin < stay->end || (next != stays.end() && other->end > next->begin)) {
        throw UsageError(
            fmt::format("units {} and {} save activations in one slot, and their windows are open inside each other: "
                        "leave one's on "
                        "the device (UnitOptions::saved_in)",
                        plan.units[stay->unit].name, plan.units[other->unit].name));
      }
      before_next = &*other;
    }
    if (next == stays.end()) {
      result.windows[stay->end].ends = stay->unit;
    } else if (before_next != nullptr) {
      result.windows[stay->end].leaves = stay->unit;
      result.windows[before_next->end].comes = stay->unit;
    }
  }
  return result;
}

}  // namespace tessera::plan
