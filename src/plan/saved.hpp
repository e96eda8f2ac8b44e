// Which of the values that forward windows leave to backward ones (UnitSpec::saved) leave their slot in between, and
// when they come back.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "tessera/plan/plan.hpp"

namespace tessera::plan {

// SavedMoves says for each position of a pass what follows the window there, of units that have a slot.
struct SavedMoves {
  struct Window {
    std::optional<std::size_t> leaves;  // to the host's memory: another unit takes the slot before its backward window
    std::optional<std::size_t> ends;    // its last backward window closes here
    std::optional<std::size_t> comes;   // back, into a slot that nobody takes any more before its backward window
  };
  std::vector<Window> windows;
};

// Throws UsageError where a unit with a slot has more than one forward window in the pass, or where windows of two that
// share one are open inside each other.
SavedMoves saved_moves(const Plan& plan, const std::vector<WindowUse>& windows);

}  // namespace tessera::plan
