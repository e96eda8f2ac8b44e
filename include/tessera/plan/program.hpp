// A program: the windows of one micro-batch, and of one evaluation pass, in the order in which the user opens them. A
// model has one or several, each with the units that it trains: a generator and its discriminator, an actor and its
// critic. Each step is one program's.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/plan/state_spec.hpp"

#pragma GCC visibility push(default)

namespace tessera::plan {

enum class WindowKind {
  forward,         // reads parameters
  backward,        // reads parameters, writes gradients
  recompute,       // a forward inside the backward pass (activation checkpointing)
  evaluate,        // a forward outside training: no gradients follow
  backward_input,  // a first part of backward that forms the gradient of the unit's input alone: reads parameters. The
                   // backward window that follows forms the gradients of its parameters
};
inline constexpr std::size_t window_kind_count = 5;
std::string_view to_string(WindowKind kind);

// Windows nest: while one is open, those of other units may open and close, and then it goes on. Each stretch of it is
// a use of its own, and from the second on it `resumes`: {parent}, {child}, {parent, resumes}.
struct WindowUse {
  std::size_t unit;  // index in the order of FullyShard::add
  WindowKind kind;
  bool resumes = false;
  friend bool operator==(const WindowUse&, const WindowUse&) = default;
};
// Says for each position whether the window closes there, and no later use resumes it. The windows are a whole pass, or
// the uses of some of its units.
std::vector<bool> closes(const std::vector<WindowUse>& windows);

struct Program {
  std::vector<WindowUse> micro_batch;  // forward, recompute and backward windows; each unit that it trains has at least
                                       // one backward window
  std::vector<WindowUse> evaluation;   // evaluate windows; may be empty
  std::string name = "train";          // of several each has its own
  // The units whose gradients its steps reduce and whose weights they update; the backward windows of others only pass
  // the gradient of their input on. Default: every unit that has a backward window here. What is frozen is not trained.
  std::optional<std::vector<std::size_t>> trains = std::nullopt;
  // The states of the optimizer that steps of this program use. Default: the model's.
  std::optional<std::vector<StateSpec>> optimizer_states = std::nullopt;
  // A step of this program has so many, at least 1. Default: the options'.
  std::optional<std::size_t> micro_batches = std::nullopt;

  // Units 0 … n-1 forward, n-1 … 0 backward; evaluation 0 … n-1.
  static Program chain(std::size_t units);
};

// The program with a recompute window right before each backward window of the units that are marked, where none stands
// there: what was open inside the unit's latest forward window that was not gone back through is so again. Throws
// UsageError where something else than forward windows was.
Program recomputing(const Program& program, const std::vector<bool>& units);

inline constexpr std::size_t no_program = static_cast<std::size_t>(-1);

// Returns for each unit the program that trains it, or no_program where `trainable` says that it is frozen. A unit
// without parameters counts as trained by the first program that has a backward window of it. Throws UsageError naming
// the program and the window or unit: no program, two of one name, a unit that does not exist, a kind that does not
// belong there, a backward window before any forward one of its unit, one that resumes what is not open, a unit that is
// trained by no program or by two, or by one that has no backward window of it.
struct Trainable {
  bool parameters;             // has any
  bool trained;                // some of them are not frozen, or it has none
  std::string_view name = {};  // for errors
};
std::vector<std::size_t> trainers(std::span<const Program> programs, std::span<const Trainable> units);

}  // namespace tessera::plan

#pragma GCC visibility pop
