// A program: the windows of one micro-batch, and of one evaluation pass, in the order in which the user opens them.
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

namespace tessera::plan {

enum class WindowKind {
  forward,    // reads parameters
  backward,   // reads parameters, writes gradients
  recompute,  // a forward inside the backward pass (activation checkpointing)
  evaluate,   // a forward outside training: no gradients follow
};
std::string_view to_string(WindowKind kind);

struct WindowUse {
  std::size_t unit;  // index in the order of FullyShard::add
  WindowKind kind;
  friend bool operator==(const WindowUse&, const WindowUse&) = default;
};

struct Program {
  std::vector<WindowUse>
      micro_batch;  // forward, recompute and backward windows; every trained unit has at least one backward window
  std::vector<WindowUse> evaluation;  // evaluate windows; may be empty

  // Units 0 … n-1 forward, n-1 … 0 backward; evaluation 0 … n-1.
  static Program chain(std::size_t units);
};

// Throws UsageError naming the window: a unit that does not exist, or is trained (by unit) and has no backward window,
// a kind that does not belong there, a backward window before any forward one of its unit.
void check(const Program& program, const std::vector<bool>& trained);

}  // namespace tessera::plan
