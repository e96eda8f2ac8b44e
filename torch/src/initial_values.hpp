// A module's own values become the runtime's.
#pragma once

#include <torch/nn/module.h>

#include <functional>
#include <memory>
#include <span>
#include <string>

#include "src/module_tensors.hpp"
#include "tessera/shard/fully_shard.hpp"

namespace tessera::torch {

// Tells deferred tensors their names. Throws UsageError for a tensor that has a shape and will have no values, but for
// parameters where `rule` is said to give them.
void prepare_values(const ::torch::nn::Module& module, bool rule);

// Gives every rank its share of rank 0's values, one parameter at a time, in stretches that are not longer than 1 MiB.
// The caller calls shards_changed() when all are there. Collective; blocks.
class InitialValues {
 public:
  InitialValues(World& world, tessera::FullyShard& sharded);
  ~InitialValues();

  void scatter(const Unit& unit, std::span<const std::unique_ptr<ParameterTensor>> parameters);
  void copy(BufferTensor& buffer);

 private:
  // `take(first, values)` gets stretch after stretch of the tensor as rank 0 has it.
  using Take = std::function<void(std::size_t first, std::span<const float> values)>;
  void from_first_rank(const at::Tensor& own, const std::string& name, const Take& take);

  World& world_;
  tessera::FullyShard& sharded_;
  Stream stream_;
  std::unique_ptr<Communicator> communicator_;  // null: there is one rank
};

}  // namespace tessera::torch
