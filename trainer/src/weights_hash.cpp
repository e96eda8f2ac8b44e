// Sums of whole numbers have no order: any cut into pieces, and any number of lanes, comes to the same hash.
#include "trainer/src/weights_hash.hpp"

#include <bit>

#include "tessera/comm/world.hpp"
#include "tessera/kernels/elementwise.hpp"
#include "tessera/trainer/device_data.hpp"
#include "tessera/trainer/gather_values.hpp"
#include "trainer/src/fingerprint.hpp"

namespace tessera::trainer {

namespace {

// The finaliser of MurmurHash3 (Appleby), which is one to one: each bit of x moves half of the result's.
constexpr std::uint64_t mixed(std::uint64_t x) {
  x ^= x >> 33;
  x *= 0xff51afd7ed558ccdull;
  x ^= x >> 33;
  x *= 0xc4ceb9fe1a85ec53ull;
  return x ^ x >> 33;
}

// Odd, so that no two places below 2^64 have one product, and far apart from each other for neighbours.
constexpr std::uint64_t place_factor = 0x9e3779b97f4a7c15ull;

std::span<const float> on_host(tessera::Stream& stream, std::span<const float> values, std::vector<float>& room) {
  if (computes_on_host(stream)) return values;
  room.resize(values.size());
  tessera::kernels::copy(stream, room.data(), values.data(), tessera::Bytes(values.size_bytes()));
  stream.synchronize();
  return room;
}

// Adds this rank's part of each tensor's hash; its units' begin at `before`.
void add_hashes_of_pieces(std::vector<TensorHash>& hashes, tessera::FullyShard& model, std::size_t before) {
  const tessera::plan::Plan& plan = model.plan();
  const std::size_t rank = plan.rank_of(static_cast<std::size_t>(model.world().rank()));
  std::vector<float> room;
  for (std::size_t u = 0; u < model.unit_count(); ++u) {
    const tessera::Unit& unit = model.unit(u);
    if (plan.units[u].tied) continue;
    const std::size_t variant = plan.variant_of(u, rank);
    for (const tessera::ParameterPiece& piece : model.pieces(unit)) {
      const std::size_t index = unit.index_of(*piece.parameter);
      const tessera::plan::ParameterSpec& spec = plan.units[u].parameters[index];
      if (!plan.counts(u, index, rank)) continue;
      const std::span<const float> values = on_host(model.stream(), piece.values, room);
      const std::size_t before_variant = spec.slice ? 0 : variant * piece.parameter->elements();
      spec.map().for_each_run(variant, piece.first, values.size(),
                              [&](std::size_t own, std::size_t whole, std::size_t count) {
                                hashes[before + index].hash +=
                                    hash_elements(before_variant + whole, values.subspan(own - piece.first, count));
                              });
    }
    before += unit.parameters().size();
  }
}

}  // namespace

std::uint64_t hash_elements(std::size_t first, std::span<const float> values) {
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    sum += mixed((first + i + 1) * place_factor ^ std::bit_cast<std::uint32_t>(values[i]));
  }
  return sum;
}

std::vector<TensorHash> hash_weights(tessera::FullyShard& model) {
  std::vector<TensorHash> result;
  std::size_t first = 0;  // of this rank's role
  for (const tessera::plan::Plan* plan : model.plans()) {
    if (plan->options.role == model.plan().options.role) first = result.size();
    for (const tessera::plan::UnitSpec& unit : plan->units) {
      for (const tessera::plan::ParameterSpec& parameter : unit.parameters)
        if (!unit.tied) result.push_back({parameter.name, 0});
    }
  }
  std::vector<TensorHash> of_rank = result;
  add_hashes_of_pieces(of_rank, model, first);
  std::vector<std::uint64_t> mine;
  for (const TensorHash& tensor : of_rank) mine.push_back(tensor.hash);
  const auto all = gather_values<std::uint64_t>(model.world(), mine, "hashes of weights");
  for (std::size_t i = 0; i < all.size(); ++i) result[i % result.size()].hash += all[i];
  return result;
}

std::uint64_t whole_hash(std::span<const TensorHash> tensors) {
  std::uint64_t sum = 0;
  for (const TensorHash& tensor : tensors) {
    Fingerprint name;
    name.add(tensor.name);
    sum += mixed(name.number() ^ tensor.hash);
  }
  return sum;
}

}  // namespace tessera::trainer
