// A model of given shapes whose layers compute nothing: its windows open, and its gradients are zero. What a runtime
// holds for such a model can thus be measured without the model's own code, in the time that the runtime itself takes.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "tessera/comm/world.hpp"
#include "tessera/plan/layout.hpp"
#include "tessera/plan/program.hpp"
#include "tessera/shard/fully_shard.hpp"

namespace tessera::probe {

class HollowModel {
 public:
  // Adds the units; finalizes with AdamW. Parameters start at zero. options.program says in which order windows open.
  // Collective; synchronises.
  HollowModel(World& world, std::span<const plan::UnitSpec> units, const FullyShardOptions& options);

  FullyShard& model() { return model_; }

  // All micro-batches of a step, and its update.
  void step();
  void evaluate();

 private:
  void add(const plan::UnitSpec& spec);
  void run(const std::vector<plan::WindowUse>& windows);
  void collect_zeros(Window& window, const Unit& unit);
  void write_gradients(Window& window, const Unit& unit);

  std::vector<std::unique_ptr<Parameter>> parameters_;
  std::vector<std::unique_ptr<Buffer>> buffers_;
  std::vector<std::unique_ptr<Collective>> collectives_;
  std::vector<Unit*> units_;
  plan::Program program_;
  FullyShard model_;
};

}  // namespace tessera::probe
