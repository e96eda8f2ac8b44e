// The toy model on one rank, taken through a step or an evaluation at a time: whoever measures decides when. A step of
// it allocates nothing that is not the runtime's.
#pragma once

#include <memory>
#include <vector>

#include "shard/toy_model.hpp"

namespace toy {

template <typename T = float, typename L = Layer<T>>
class Trainee {
 public:
  Trainee(tessera::World& world, const Run& run)
      : layers_(make_layers<L>(run.widths, rows)),
        targets_(rows * run.widths.back()),
        dys_(micro_batches_of(run, world)),
        model_(world, run.options) {
    for (std::size_t micro = 0; micro < dys_.size(); ++micro) {
      inputs_.push_back(sample(rows * run.widths.front(), 0, micro, world.rank(), 0));
      dys_[micro].resize(targets_.size());
    }
    add_layers(model_, layers_, run);
    model_.finalize(optimizer_of(run));
  }

  tessera::FullyShard& model() { return model_; }
  const Layers<L>& layers() const { return layers_; }

  // Samples of another step than the first, in their place.
  void bring(std::size_t step) {
    const auto rank = static_cast<std::uint64_t>(model_.world().rank());
    for (std::size_t micro = 0; micro < inputs_.size(); ++micro) {
      const std::uint64_t at = ((step * inputs_.size() + micro) * 64 + rank) * 64;
      tessera::Initial::uniform(-1.0f, 1.0f).fill(inputs_[micro], 1, "inputs", at);
    }
  }
  void step() {
    pass(inputs_.size());
    model_.update();
  }

  // With weights and a short accumulation on rank 0 alone, and then with nothing on any rank.
  void uneven_steps() {
    if (model_.world().rank() == 0) {
      pass(1);
      const double weight = 3.0;
      if (model_.granules().total > 0) {
        model_.update({.granule_weights = std::span(&weight, 1)});
      } else {
        model_.update({.weight = weight});
      }
    } else {
      model_.skip_step();
    }
    model_.skip_step();
  }

  void evaluate() {
    const Values* y = &inputs_.front();
    for (auto& layer : layers_) y = &model_.evaluate(*layer, *y);
  }

  // Every segment that the plan has, at least once.
  void run_every_segment() {
    for (std::size_t s = 0; s < std::max<std::size_t>(1, model_.options().outer.every); ++s) step();
    evaluate();
    model_.shards_changed();
  }

 private:
  static constexpr std::size_t rows = 3;

  // With granules this rank's: on one replica its place is its number.
  static std::size_t micro_batches_of(const Run& run, tessera::World& world) {
    if (run.options.granules == 0) return run.options.micro_batches;
    return tessera::Granules{run.options.granules, std::size_t(world.size()), std::size_t(world.rank())}.mine();
  }

  void pass(std::size_t micro_batches) {
    for (std::size_t micro = 0; micro < micro_batches; ++micro) {
      const Values* const y = &forward(model_, layers_, inputs_[micro]);
      model_.stream().submit([this, y, micro] {
        for (std::size_t i = 0; i < targets_.size(); ++i) dys_[micro][i] = (*y)[i] - targets_[i];
      });
      backward(model_, layers_, dys_[micro]);
    }
  }

  // The model comes last, so that these outlive its queued work, which reads and writes them.
  Layers<L> layers_;
  std::vector<Values> inputs_;
  Values targets_;
  std::vector<Values> dys_;
  tessera::FullyShard model_;
};

}  // namespace toy
