// Offsets are the plan's and the layouts'; here they become addresses.
#include "shard/model_memory.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "plan/ranges.hpp"
#include "tessera/base/error.hpp"
#include "tessera/kernels/exact_squares.hpp"

namespace tessera {

static_assert(plan::scalars_size == Bytes(sizeof(kernels::StepScalars)));
static_assert(plan::step_part_size == Bytes(sizeof(kernels::StepPart)));
static_assert(plan::exact_norm_size == Bytes(sizeof(kernels::ExactSquares)));
static_assert(plan::loss_scale_offset == Bytes(offsetof(kernels::StepScalars, loss_scale)));
static_assert(plan::region_alignment == Arena::page);

namespace {

plan::MemoryReport with_folder(const plan::Plan& plan, const std::filesystem::path& disk) {
  const plan::MemoryReport memory = plan::memory(plan);
  if (memory.disk == Bytes(0) || !disk.empty()) return memory;
  throw UsageError(
      fmt::format("{} of states and masters are to stand on disk, and no folder is named: set FullyShardOptions::disk",
                  to_string(memory.disk)));
}

}  // namespace

ModelMemory::ModelMemory(World& world, const Model& model)
    : ModelMemory(world, model, with_folder(model.plan, model.disk)) {}

ModelMemory::ModelMemory(World& world, const Model& model, const plan::MemoryReport& memory)
    : plan_(model.plan),
      units_(model.units),
      rank_(plan_.rank_of(static_cast<std::size_t>(world.rank()))),
      place_(plan_.mesh.place_of(rank_)),
      arena_(world.make_arena(memory.device())),
      host_arena_(Arena::on_host_of(world.device(), memory.host)),
      disk_(model.disk, memory.disk) {
  if (host_arena_.size() > Bytes(0)) std::memset(host_arena_.data(), 0, host_arena_.size().count());
}

std::byte* ModelMemory::base(std::size_t buffer) {
  const Bytes offset = plan_.buffers[buffer].offset;
  if (offset < arena_.size()) return arena_.data() + offset.count();
  const Bytes behind = offset - arena_.size();
  if (behind < host_arena_.size()) return host_arena_.data() + behind.count();
  return disk_.data() + (behind - host_arena_.size()).count();
}

Bytes ModelMemory::place_on_disk(const plan::Range& range) const {
  return plan_.buffers[range.buffer].offset - arena_.size() - host_arena_.size() + offset(range);
}

Bytes ModelMemory::offset(const plan::Range& range) const { return plan::begin_of(range, place_); }

std::span<std::byte> ModelMemory::bytes(std::size_t buffer) {
  if (buffer == plan::no_buffer) return {};
  return {base(buffer), plan_.buffers[buffer].size.count()};
}

kernels::StepScalars* ModelMemory::scalars(std::size_t program) {
  return reinterpret_cast<kernels::StepScalars*>(base(plan_.program_buffers[program].scalars));
}

bool ModelMemory::has_values(std::size_t unit, const plan::Content& content, std::size_t parameter) const {
  const plan::UnitLayout& layout = plan_.layouts[unit];
  if (layout.part(parameter) == plan::Part::frozen) return content == plan_.unit_buffers[unit][plan::Role::master];
  return layout.offset(parameter) >= content.begin;
}

std::size_t ModelMemory::place_in(std::size_t unit, const plan::Content& content, std::size_t element) const {
  if (content.begin == 0) return element;
  const std::size_t first = plan_.layouts[unit].share_begin(rank_, content.over);
  return first + element - std::max(first, content.begin);
}

std::vector<ParameterPiece> ModelMemory::pieces_of(std::size_t unit, const plan::Content& content, std::byte* values) {
  const plan::UnitLayout& layout = plan_.layouts[unit];
  const AxisSet own = plan_.own(unit, content);
  std::vector<ParameterPiece> result;
  for (const plan::ShardPiece& piece : layout.pieces(rank_, own)) {
    const plan::Part part = layout.part(piece.parameter);
    if (!has_values(unit, content, piece.parameter)) continue;
    const Bytes begin = offset(plan::my_shard(plan_, unit, content, part));
    auto* const shard = reinterpret_cast<float*>(values) + begin.count() / size_of(content.type).count();
    result.push_back({units_[unit]->parameters()[piece.parameter],
                      piece.parameter_offset,
                      {shard + place_in(unit, content, piece.shard_offset - layout.begin_in(own, part)), piece.count}});
  }
  return result;
}

std::vector<StatePiece> ModelMemory::state_pieces(std::size_t unit, const plan::Content& content) {
  const plan::UnitLayout& layout = plan_.layouts[unit];
  const AxisSet own = plan_.own(unit, content);
  std::vector<StatePiece> result;
  for (const plan::ShardPiece& piece : layout.pieces(rank_, own)) {
    const plan::Part part = layout.part(piece.parameter);
    if (!has_values(unit, content, piece.parameter)) continue;
    std::byte* const shard = address(plan::my_shard(plan_, unit, content, part));
    const Bytes size = size_of(content.type) * plan::values_of(piece.count, content.block);
    const std::size_t place = place_in(unit, content, piece.shard_offset - layout.begin_in(own, part));
    result.push_back({units_[unit]->parameters()[piece.parameter],
                      piece.parameter_offset / content.block,
                      {shard + content.size(place).count(), size.count()}});
  }
  return result;
}

std::span<float> ModelMemory::values(const Unit& unit, const Buffer& untrained) {
  const std::size_t offset = plan_.layouts[unit.index()].buffer_offset(unit.index_of(untrained));
  return {reinterpret_cast<float*>(base(plan_.unit_buffers[unit.index()][plan::Role::untrained].buffer)) + offset,
          untrained.elements()};
}

std::vector<MemoryRegion> ModelMemory::regions() {
  std::vector<MemoryRegion> result;
  for (const plan::CategoryBytes& category : plan::memory(plan_).categories) {
    if (category.size == Bytes(0)) continue;
    const auto first = std::find_if(plan_.buffers.begin(), plan_.buffers.end(),
                                    [&](const plan::Buffer& buffer) { return buffer.category == category.category; });
    const auto buffer = static_cast<std::size_t>(first - plan_.buffers.begin());
    result.push_back({category.category, {base(buffer), category.size.count()}, first->space});
  }
  return result;
}

}  // namespace tessera
