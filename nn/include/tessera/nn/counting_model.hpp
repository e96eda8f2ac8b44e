// Stands in for a FullyShard in a pass that only counts its activations and writes down its windows: the same calls,
// without memory.
//   template <typename Model> void pass(Model& model, ActivationStack& stack);   // the pass, for both
//   CountingModel counting; ActivationStack stack; pass(counting, stack);        // stack.peak() is what it needs
#pragma once

#include <list>
#include <vector>

#include "tessera/nn/counted_work.hpp"
#include "tessera/shard/watched_pass.hpp"

#pragma GCC visibility push(default)

namespace tessera::nn {

class CountingModel final : public StandInModel {
 public:
  // In the order of the windows, what each of them computes; since the last call of take_windows().
  const std::list<CountedWork>& works() const { return works_; }
  std::vector<plan::WindowUse> take_windows() {
    works_.clear();
    return StandInModel::take_windows();
  }

 private:
  void begin(const plan::WindowUse&) override { works_.emplace_back(); }
  WindowNotes* notes() override { return &works_.back(); }

  std::list<CountedWork> works_;  // an empty one allocates nothing, and entries stay where they are
};

}  // namespace tessera::nn

#pragma GCC visibility pop
