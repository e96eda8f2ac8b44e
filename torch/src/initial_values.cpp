// Rank 0's values travel by broadcast, because every rank drew its own, or none has any yet.
#include "src/initial_values.hpp"

#include <ATen/Functions.h>
#include <fmt/format.h>

#include <algorithm>

#include "src/hidden_tensor.hpp"
#include "src/module_units.hpp"
#include "src/recording.hpp"
#include "tessera/base/error.hpp"
#include "tessera/kernels/elementwise.hpp"

namespace tessera::torch {

namespace {

constexpr std::size_t longest_stretch = 1 << 18;

at::Tensor floats_of(const at::Tensor& own, const std::string& name) {
  const auto recording = recording_of(own);
  const at::Tensor values = (recording == nullptr ? own.to(at::kCPU) : recording->values(own)).contiguous();
  require_exact(values, name);
  return values.to(at::kFloat);
}

void prepare(const at::Tensor& tensor, const std::string& name) {
  const auto recording = recording_of(tensor);
  if (recording == nullptr) {
    throw UsageError(
        fmt::format("{} has a shape and no values: make the module with make_deferred(), or give a rule for values "
                    "(ModuleOptions::initial, of parameters)",
                    name));
  }
  recording->require_complete(tensor, name);
  recording->name(tensor, name);
}

}  // namespace

void prepare_values(const ::torch::nn::Module& module, bool rule) {
  for (const NamedTensor& parameter : distinct_parameters(module)) {
    if (parameter.tensor.is_meta() && !rule) prepare(parameter.tensor, parameter.name);
  }
  for (const auto& buffer : module.named_buffers()) {
    if (buffer.value().defined() && buffer.value().is_meta()) prepare(buffer.value(), buffer.key());
  }
}

InitialValues::InitialValues(World& world, tessera::FullyShard& sharded)
    : world_(world),
      sharded_(sharded),
      stream_(Device::cpu(), {.name = "initial values"}),
      communicator_(world.size() == 1 ? nullptr : world.make_communicator("initial values", {.host_memory = true})) {}

InitialValues::~InitialValues() = default;

void InitialValues::from_first_rank(const at::Tensor& own, const std::string& name, const Take& take) {
  const auto elements = static_cast<std::size_t>(own.numel());
  if (elements == 0) return;
  const std::size_t most = std::min(elements, longest_stretch);
  const bool first_rank = world_.rank() == 0;
  const at::Tensor place = first_rank ? floats_of(own, name) : at::empty({static_cast<std::int64_t>(most)});
  auto* values = place.data_ptr<float>();
  for (std::size_t first = 0; first < elements; first += most) {
    const std::span stretch(first_rank ? values + first : values, std::min(most, elements - first));
    if (communicator_ != nullptr) {
      communicator_->broadcast(stream_, {.data = reinterpret_cast<std::byte*>(stretch.data()),
                                         .size = Bytes(stretch.size_bytes()),
                                         .root = 0,
                                         .label = name});
      stream_.synchronize();
    }
    take(first, stretch);
    sharded_.stream().synchronize();
  }
}

void InitialValues::scatter(const Unit& unit, std::span<const std::unique_ptr<ParameterTensor>> parameters) {
  const std::vector<ParameterPiece> pieces = sharded_.pieces(unit);
  for (const auto& parameter : parameters) {
    from_first_rank(parameter->own(), parameter->name(), [&](std::size_t first, std::span<const float> values) {
      for (const ParameterPiece& piece : pieces) {
        if (piece.parameter != &parameter->parameter()) continue;
        const std::size_t begin = std::max(first, piece.first);
        const std::size_t end = std::min(first + values.size(), piece.first + piece.values.size());
        if (begin >= end) continue;
        kernels::copy(sharded_.stream(), piece.values.data() + (begin - piece.first), values.data() + (begin - first),
                      Bytes((end - begin) * sizeof(float)));
      }
    });
  }
  sharded_.round_masters(unit);
}

void InitialValues::copy(BufferTensor& buffer) {
  const std::span<float> place = sharded_.buffer(buffer.buffer());
  from_first_rank(buffer.own(), buffer.buffer().name(), [&](std::size_t first, std::span<const float> values) {
    kernels::copy(sharded_.stream(), place.data() + first, values.data(), Bytes(values.size_bytes()));
  });
}

}  // namespace tessera::torch
