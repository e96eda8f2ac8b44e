// Copies of pieces are one stretch, piece after piece. Shares of a parameter differ in size, so every rank sends as
// many bytes as the largest.
#include "shard/pieces.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "shard/executor.hpp"
#include "tessera/base/error.hpp"
#include "tessera/kernels/elementwise.hpp"

namespace tessera {

// ---- pieces ----

HostPieces::HostPieces(Stream& stream, std::vector<ParameterPiece> of_device)
    : stream_(stream), of_device_(std::move(of_device)), pieces_(of_device_) {
  if (stream.device().kind() == DeviceKind::cpu) return;
  std::size_t elements = 0;
  for (const ParameterPiece& piece : of_device_) elements += piece.values.size();
  copy_.resize(elements);
  float* next = copy_.data();
  for (ParameterPiece& piece : pieces_) {
    kernels::copy(stream, next, piece.values.data(), Bytes(piece.values.size_bytes()));
    piece.values = {next, piece.values.size()};
    next += piece.values.size();
  }
  stream.synchronize();
}

void HostPieces::put_back() {
  if (copy_.empty()) return;
  for (std::size_t i = 0; i < pieces_.size(); ++i) {
    kernels::copy(stream_, of_device_[i].values.data(), pieces_[i].values.data(),
                  Bytes(pieces_[i].values.size_bytes()));
  }
  stream_.synchronize();
}

std::vector<ParameterPiece> settled_pieces(Executor& executor, std::size_t unit, const plan::Content& content,
                                           std::vector<float>& copy) {
  ModelMemory& memory = executor.memory();
  const DType type = content.type;
  if (type == DType::fp32) return settled_pieces(executor, unit, content);
  executor.synchronize();
  std::span<const std::byte> kept = memory.bytes(content.buffer);
  Stream& compute = executor.compute();
  std::vector<std::byte> brought;
  if (compute.device().kind() != DeviceKind::cpu) {
    brought.resize(kept.size());
    kernels::copy(compute, brought.data(), kept.data(), Bytes(kept.size()));
    compute.synchronize();
    kept = brought;
  }
  copy.resize(kept.size() / size_of(type).count());
  Stream host(Device::cpu(), {.name = "widened values", .mode = StreamMode::immediate});
  kernels::cast(host, {copy.data(), DType::fp32}, {kept.data(), type}, copy.size());
  return memory.pieces_of(unit, content, reinterpret_cast<std::byte*>(copy.data()));
}

std::vector<ParameterPiece> settled_pieces(Executor& executor, std::size_t unit, const plan::Content& content) {
  executor.synchronize();
  return executor.memory().pieces(unit, content);
}

void put_back_rounded(Executor& executor, std::size_t unit, const plan::Content& content, std::vector<float>& copy) {
  executor.synchronize();
  ModelMemory& memory = executor.memory();
  const auto from = memory.pieces_of(unit, content, reinterpret_cast<std::byte*>(copy.data()));
  const std::vector<StatePiece> to = memory.state_pieces(unit, content);
  Stream host(Device::cpu(), {.name = "rounded values", .mode = StreamMode::immediate});
  std::vector<std::byte> rounded;
  for (std::size_t i = 0; i < to.size(); ++i) {
    rounded.resize(to[i].bytes.size());
    kernels::cast(host, {rounded.data(), content.type}, from[i].values.data(), from[i].values.size());
    kernels::copy(executor.compute(), to[i].bytes.data(), rounded.data(), Bytes(rounded.size()));
    executor.compute().synchronize();
  }
}

std::vector<StatePiece> settled_state_pieces(Executor& executor, std::size_t unit, const plan::Content& content) {
  executor.synchronize();
  return executor.memory().state_pieces(unit, content);
}

// ---- whole parameters ----

bool is_with(const plan::Plan& plan, std::size_t rank, const World& world, AxisSet axes) {
  const auto place = [&](std::size_t of) { return plan.mesh.index_of(axes, plan.mesh.place_of(of)); };
  return place(rank) == place(plan.rank_of(static_cast<std::size_t>(world.rank())));
}

std::vector<std::byte> whole_values(World& world, const plan::Plan& plan, const WholeParameter& asked,
                                    std::optional<std::span<const std::byte>> mine) {
  const Parameter& parameter = asked.parameter;
  const Unit& unit = *parameter.unit();
  const std::size_t index = unit.index_of(parameter);
  const auto bytes_of = [&](std::size_t elements) {
    return (size_of(asked.type) * plan::values_of(elements, asked.block)).count();
  };
  std::vector<std::optional<plan::ShardPiece>> shares;  // by rank: at most one piece of a parameter is in what it owns
  std::size_t largest = 0;
  for (std::size_t rank = 0; rank < plan.options.ranks; ++rank) {
    shares.emplace_back();
    for (const plan::ShardPiece& piece : plan.layouts[unit.index()].pieces(rank, asked.owned)) {
      if (piece.parameter != index) continue;
      shares.back() = piece;
      largest = std::max(largest, bytes_of(piece.count));
    }
  }
  const auto this_rank = static_cast<std::size_t>(world.rank());
  const bool has_role = plan.job_rank(plan.rank_of(this_rank)) == this_rank;
  if (!mine && has_role && shares[plan.rank_of(this_rank)]) {
    throw InternalError(fmt::format("this rank's share of {} is missing", parameter.name()));
  }
  std::vector<std::byte> sent(largest);
  if (mine) std::copy(mine->begin(), mine->end(), sent.begin());
  const std::vector<std::byte> all = world.gather(sent, fmt::format("whole({}), {}", parameter.name(), asked.state));
  const plan::ParameterSpec& spec = plan.units[unit.index()].parameters[index];
  const AxisSet slices = spec.slice && !spec.is_alike() ? AxisSet(Axis::tensor) : AxisSet();
  std::vector<std::byte> result(bytes_of(element_count(parameter.whole_shape())));
  for (std::size_t rank = 0; rank < shares.size(); ++rank) {
    if (!shares[rank] || !is_with(plan, rank, world, plan.mesh.axes() - asked.owned - slices)) continue;
    const std::byte* const share = all.data() + plan.job_rank(rank) * largest;
    if (slices.empty()) {
      std::memcpy(result.data() + bytes_of(shares[rank]->parameter_offset), share, bytes_of(shares[rank]->count));
      continue;
    }
    spec.map().for_each_run(plan.variant_of(unit.index(), rank), shares[rank]->parameter_offset, shares[rank]->count,
                            [&](std::size_t own, std::size_t whole, std::size_t count) {
                              std::memcpy(result.data() + bytes_of(whole),
                                          share + bytes_of(own - shares[rank]->parameter_offset), bytes_of(count));
                            });
  }
  return result;
}

std::vector<float> whole_parameter(World& world, const plan::Plan& plan, const WholeParameter& asked,
                                   std::span<const ParameterPiece> pieces) {
  const auto found = std::find_if(pieces.begin(), pieces.end(),
                                  [&](const ParameterPiece& piece) { return piece.parameter == &asked.parameter; });
  std::optional<std::span<const std::byte>> mine;
  if (found != pieces.end()) mine = std::as_bytes(found->values);
  const std::vector<std::byte> bytes = whole_values(world, plan, asked, mine);
  std::vector<float> result(bytes.size() / sizeof(float));
  if (!bytes.empty()) std::memcpy(result.data(), bytes.data(), bytes.size());
  return result;
}

// ---- scalars ----

kernels::StepScalars step_scalars(Executor& executor, std::size_t program) {
  kernels::StepScalars values;
  kernels::copy(executor.compute(), &values, executor.memory().scalars(program), Bytes(sizeof values));
  executor.compute().synchronize();
  return values;
}

void set_step_scalars(Executor& executor, std::size_t program, const kernels::StepScalars& values) {
  kernels::set_scalars(executor.compute(), executor.memory().scalars(program), values);
  executor.compute().synchronize();
  executor.set_updates(static_cast<std::size_t>(values.step + values.skipped_steps));
}

}  // namespace tessera
