// Rank 0's values travel by broadcast, because every rank drew its own.
#include "src/initial_values.hpp"

#include <ATen/Functions.h>

#include <utility>

#include "tessera/kernels/elementwise.hpp"

namespace tessera::torch {

InitialValues::InitialValues(World& world, tessera::FullyShard& sharded)
    : sharded_(sharded),
      stream_(Device::cpu(), {.name = "initial values"}),
      communicator_(world.size() == 1 ? nullptr : world.make_communicator("initial values", {.host_memory = true})) {}

InitialValues::~InitialValues() = default;

at::Tensor InitialValues::from_first_rank(const at::Tensor& values, const std::string& name) {
  if (communicator_ == nullptr || values.numel() == 0) return values;
  at::Tensor received = values.clone();
  communicator_->broadcast(stream_, {.data = static_cast<std::byte*>(received.data_ptr()),
                                     .size = Bytes(received.nbytes()),
                                     .root = 0,
                                     .label = name});
  stream_.synchronize();
  return received;
}

void InitialValues::scatter(const Unit& unit, std::span<const std::unique_ptr<ParameterTensor>> parameters) {
  const std::vector<ParameterPiece> pieces = sharded_.pieces(unit);
  for (const auto& parameter : parameters) {
    const at::Tensor values = from_first_rank(parameter->own_values(), parameter->name());
    const float* whole = values.data_ptr<float>();
    for (const ParameterPiece& piece : pieces) {
      if (piece.parameter != &parameter->parameter()) continue;
      kernels::copy(sharded_.stream(), piece.values.data(), whole + piece.first, Bytes(piece.values.size_bytes()));
    }
    sharded_.stream().synchronize();
  }
}

void InitialValues::copy(BufferTensor& buffer) {
  const at::Tensor values = from_first_rank(buffer.own_values(), buffer.buffer().name());
  const std::span<float> place = sharded_.buffer(buffer.buffer());
  kernels::copy(sharded_.stream(), place.data(), values.data_ptr<float>(), Bytes(place.size_bytes()));
  sharded_.stream().synchronize();
}

}  // namespace tessera::torch
