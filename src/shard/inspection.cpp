// Copies of pieces are one stretch, piece after piece. Shares of a parameter differ in size, so every rank sends as
// many bytes as the largest; norms take one exchange for all parameters.
#include "shard/inspection.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "shard/executor.hpp"
#include "tessera/base/error.hpp"
#include "tessera/kernels/elementwise.hpp"
#include "tessera/kernels/norm.hpp"

namespace tessera {

namespace {

// At most one piece of a parameter stands in what a rank owns.
std::optional<plan::ShardPiece> share_of(const plan::UnitLayout& layout, std::size_t rank,
                                         const ParameterPlace& place) {
  for (const plan::ShardPiece& piece : layout.pieces(rank, place.owned)) {
    if (piece.parameter == place.index) return piece;
  }
  return std::nullopt;
}

// Runs what it is given at once.
Stream stream_of_host(std::string name) {
  return Stream(Device::cpu(), {.name = std::move(name), .mode = StreamMode::immediate});
}

bool is_of_replica(const plan::Plan& plan, std::size_t rank, const World& world) {
  return plan.place_of(rank).replica == plan.place_of(static_cast<std::size_t>(world.rank())).replica;
}

std::vector<GradientNorm> trained_parameters(const plan::Plan& plan, std::size_t program,
                                             std::span<const std::unique_ptr<Unit>> units) {
  std::vector<GradientNorm> result;
  for (std::size_t u = 0; u < units.size(); ++u) {
    for (std::size_t p = 0; p < plan.layouts[u].parameters(); ++p) {
      if (plan.trains(u, program) && plan.layouts[u].part(p) == plan::Part::trained)
        result.push_back({units[u]->parameters()[p], 0.0});
    }
  }
  return result;
}

}  // namespace

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

std::vector<ParameterPiece> settled_pieces(Executor& executor, std::size_t unit, std::size_t buffer,
                                           std::vector<float>& copy) {
  ModelMemory& memory = executor.memory();
  const DType type = memory.type_of(unit, buffer);
  if (type == DType::fp32) return settled_pieces(executor, unit, buffer);
  executor.synchronize();
  std::span<const std::byte> kept = memory.bytes(buffer);
  Stream& compute = executor.compute();
  std::vector<std::byte> brought;
  if (compute.device().kind() != DeviceKind::cpu) {
    brought.resize(kept.size());
    kernels::copy(compute, brought.data(), kept.data(), Bytes(kept.size()));
    compute.synchronize();
    kept = brought;
  }
  copy.resize(kept.size() / size_of(type).count());
  Stream host = stream_of_host("widened gradient");
  kernels::cast(host, {copy.data(), DType::fp32}, {kept.data(), type}, copy.size());
  return memory.pieces_of(unit, buffer, reinterpret_cast<std::byte*>(copy.data()));
}

std::vector<ParameterPiece> settled_pieces(Executor& executor, std::size_t unit, std::size_t buffer) {
  executor.synchronize();
  return executor.memory().pieces(unit, buffer);
}

// ---- whole parameters ----

ParameterPlace parameter_place(const Unit& unit, const Parameter& parameter, Extent owned) {
  return {&parameter, unit.index(), unit.index_of(parameter), owned};
}

std::vector<float> whole_parameter(World& world, const plan::Plan& plan, const ParameterPlace& place,
                                   std::span<const ParameterPiece> pieces) {
  const plan::UnitLayout& layout = plan.layouts[place.unit];
  std::vector<std::optional<plan::ShardPiece>> shares;
  std::size_t largest = 0;
  for (std::size_t rank = 0; rank < plan.options.ranks; ++rank) {
    shares.push_back(share_of(layout, rank, place));
    if (shares.back()) largest = std::max(largest, shares.back()->count);
  }
  const auto mine = std::find_if(pieces.begin(), pieces.end(),
                                 [&](const ParameterPiece& piece) { return piece.parameter == place.parameter; });
  if (mine == pieces.end() && shares[static_cast<std::size_t>(world.rank())]) {
    throw InternalError(fmt::format("this rank's share of {} is missing", place.parameter->name()));
  }
  std::vector<float> sent(largest, 0.0f);
  if (mine != pieces.end()) std::copy(mine->values.begin(), mine->values.end(), sent.begin());
  const std::vector<std::byte> all = world.gather(std::as_bytes(std::span<const float>(sent)), place.parameter->name());
  std::vector<float> result(place.parameter->elements());
  for (std::size_t rank = 0; rank < shares.size(); ++rank) {
    const bool of_replica = place.owned == Extent::group || plan.units[place.unit].in_replica;
    if (!shares[rank] || (of_replica && !is_of_replica(plan, rank, world))) continue;
    std::memcpy(result.data() + shares[rank]->parameter_offset, all.data() + rank * largest * sizeof(float),
                shares[rank]->count * sizeof(float));
  }
  return result;
}

// ---- norms and scalars ----

std::vector<GradientNorm> gradient_norms(World& world, const plan::Plan& plan,
                                         std::span<const std::unique_ptr<Unit>> units, Executor& executor) {
  executor.require_between_steps("gradient_norms()");
  std::vector<GradientNorm> result = trained_parameters(plan, executor.program(), units);
  std::vector<double> mine(result.size(), 0.0);
  Stream host = stream_of_host("gradient norms");
  std::vector<float> copy;
  std::size_t next = 0;  // pieces come in the order of the parameters
  for (std::size_t u = 0; u < units.size(); ++u) {
    if (!plan.trains(u, executor.program())) continue;
    const HostPieces here(executor.compute(), settled_pieces(executor, u, plan.unit_buffers[u].gradient, copy));
    for (const ParameterPiece& piece : here.pieces()) {
      while (result[next].parameter != piece.parameter) ++next;
      kernels::sum_of_squares(host, piece.values.data(), piece.values.size(), &mine[next]);
    }
  }
  const std::vector<std::byte> all = world.gather(std::as_bytes(std::span<const double>(mine)), "gradient norms");
  for (std::size_t rank = 0; rank < static_cast<std::size_t>(world.size()); ++rank) {
    const bool of_mine = is_of_replica(plan, rank, world);
    for (std::size_t i = 0; i < result.size(); ++i) {
      if (!of_mine && plan.is_of_replica(result[i].parameter->unit()->index())) continue;
      double squares = 0.0;
      std::memcpy(&squares, all.data() + (rank * result.size() + i) * sizeof(double), sizeof(double));
      result[i].norm += squares;
    }
  }
  const kernels::StepScalars now = step_scalars(executor, executor.program());
  const double scale = static_cast<double>(now.applied_loss_scale);
  const auto divisor = static_cast<double>(plan.gradient_divisor(executor.program()));
  const double share = now.weight > 0.0 ? divisor / now.weight : 1.0;
  for (GradientNorm& entry : result) entry.norm = std::sqrt(entry.norm) * share / scale;
  return result;
}

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
