// A module's own values become the runtime's.
#pragma once

#include <memory>
#include <span>

#include "src/module_tensors.hpp"
#include "tessera/shard/fully_shard.hpp"

namespace tessera::torch {

// Gives every rank its share of rank 0's values, one parameter at a time. The caller calls shards_changed() when all
// are there. Collective; blocks.
class InitialValues {
 public:
  InitialValues(World& world, tessera::FullyShard& sharded);
  ~InitialValues();

  void scatter(const Unit& unit, std::span<const std::unique_ptr<ParameterTensor>> parameters);
  void copy(BufferTensor& buffer);

 private:
  at::Tensor from_first_rank(const at::Tensor& values, const std::string& name);

  tessera::FullyShard& sharded_;
  Stream stream_;
  std::unique_ptr<Communicator> communicator_;  // null: there is one rank
};

}  // namespace tessera::torch
