// Programs of a model: which windows a step has and which units it trains, told by units instead of numbers. A model
// has one program, by default the chain of its units, or several, each with its own units to train, its own optimizer
// and its own count of updates: a discriminator and a generator, an actor and a critic. Each step is one program's.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/plan/program.hpp"
#include "tessera/shard/optimizer.hpp"
#include "tessera/shard/unit.hpp"

#pragma GCC visibility push(default)

namespace tessera {

struct UnitWindow {
  const Unit* unit;
  plan::WindowKind kind;
  bool resumes = false;  // one that was open around those before it (plan::WindowUse)
};

// The same on every rank.
struct ProgramOptions {
  std::string name = {};                    // of several programs each has its own; default: "train"
  std::vector<UnitWindow> windows = {};     // of a micro-batch, in their order
  std::vector<UnitWindow> evaluation = {};  // evaluate windows; may be empty
  // Instead of lists: finalize() calls them once and writes down which windows they open. They are the very functions
  // that train and evaluate later, on a batch as any other: layers compute on scratch memory of the largest unit's
  // size, in which parameters and buffers are zero and the loss scale is 1, and nothing of it is kept. update() and
  // what looks at parameters have no place in them.
  std::function<void()> pass = nullptr;
  std::function<void()> evaluation_pass = nullptr;
  // The units whose gradients are reduced and whose weights are updated; others' backward windows only pass the
  // gradient of their input on, as frozen ones do. Default: every unit that has a backward window here. Of several
  // programs one trains a unit.
  std::optional<std::vector<const Unit*>> trains = std::nullopt;
  std::unique_ptr<Optimizer> optimizer = nullptr;  // default: what finalize() is given
  // Each of its steps has so many, at least 1. Default: FullyShardOptions::micro_batches.
  std::optional<std::size_t> micro_batches = std::nullopt;
};

// FullyShard::add_program returns this, and FullyShard::begin takes it. It lives as long as its model.
class TrainingProgram {
 public:
  TrainingProgram(std::string name, std::size_t index) : name_(std::move(name)), index_(index) {}
  const std::string& name() const { return name_; }
  std::size_t index() const { return index_; }

 private:
  std::string name_;
  std::size_t index_;
};

}  // namespace tessera

#pragma GCC visibility pop
