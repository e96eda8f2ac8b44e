// Offsets are the plan's and the layouts'; here they become addresses.
#include "shard/model_memory.hpp"

#include <cstring>

#include "plan/ranges.hpp"
#include "tessera/kernels/exact_squares.hpp"
#include "tessera/kernels/step_scalars.hpp"
#include "tessera/plan/memory.hpp"

namespace tessera {

static_assert(plan::scalars_size == Bytes(sizeof(kernels::StepScalars)));
static_assert(plan::step_part_size == Bytes(sizeof(kernels::StepPart)));
static_assert(plan::exact_norm_size == Bytes(sizeof(kernels::ExactSquares)));
static_assert(plan::loss_scale_offset == Bytes(offsetof(kernels::StepScalars, loss_scale)));
static_assert(plan::region_alignment == Arena::page);

namespace {}  // namespace

ModelMemory::ModelMemory(World& world, const plan::Plan& plan, std::span<const std::unique_ptr<Unit>> units)
    : plan_(plan),
      units_(units),
      rank_(plan.rank_of(static_cast<std::size_t>(world.rank()))),
      place_(plan.mesh.place_of(rank_)),
      arena_(world.make_arena(plan::memory(plan).device())),
      host_arena_(Arena::on_host_of(world.device(), plan::memory(plan).host)) {
  if (host_arena_.size() > Bytes(0)) std::memset(host_arena_.data(), 0, host_arena_.size().count());
}

std::byte* ModelMemory::base(std::size_t buffer) {
  const Bytes offset = plan_.buffers[buffer].offset;
  if (offset < arena_.size()) return arena_.data() + offset.count();
  return host_arena_.data() + (offset - arena_.size()).count();
}

Bytes ModelMemory::offset(const plan::Range& range) const { return plan::begin_of(range, place_); }

std::span<std::byte> ModelMemory::bytes(std::size_t buffer) {
  if (buffer == plan::no_buffer) return {};
  return {base(buffer), plan_.buffers[buffer].size.count()};
}

kernels::StepScalars* ModelMemory::scalars(std::size_t program) {
  return reinterpret_cast<kernels::StepScalars*>(base(plan_.program_buffers[program].scalars));
}

std::vector<ParameterPiece> ModelMemory::pieces_of(std::size_t unit, const plan::Content& content, std::byte* values) {
  const plan::UnitLayout& layout = plan_.layouts[unit];
  const bool masters = content == plan_.unit_buffers[unit][plan::Role::master];
  const AxisSet own = plan_.own(unit, content);
  std::vector<ParameterPiece> result;
  for (const plan::ShardPiece& piece : layout.pieces(rank_, own)) {
    const plan::Part part = layout.part(piece.parameter);
    if (!masters && part == plan::Part::frozen) continue;
    auto* const shard = reinterpret_cast<float*>(values + offset(plan::my_shard(plan_, unit, content, part)).count());
    result.push_back({units_[unit]->parameters()[piece.parameter],
                      piece.parameter_offset,
                      {shard + (piece.shard_offset - layout.begin_in(own, part)), piece.count}});
  }
  return result;
}

std::vector<StatePiece> ModelMemory::state_pieces(std::size_t unit, const plan::Content& content) {
  const plan::UnitLayout& layout = plan_.layouts[unit];
  const AxisSet own = plan_.own(unit, content);
  const bool masters = content == plan_.unit_buffers[unit][plan::Role::master];
  std::vector<StatePiece> result;
  for (const plan::ShardPiece& piece : layout.pieces(rank_, own)) {
    const plan::Part part = layout.part(piece.parameter);
    if (!masters && part == plan::Part::frozen) continue;
    std::byte* const shard = address(plan::my_shard(plan_, unit, content, part));
    const Bytes size = size_of(content.type) * plan::values_of(piece.count, content.block);
    result.push_back({units_[unit]->parameters()[piece.parameter],
                      piece.parameter_offset / content.block,
                      {shard + content.size(piece.shard_offset - layout.begin_in(own, part)).count(), size.count()}});
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
    const bool host = category.offset >= arena_.size();
    result.push_back({category.category,
                      host ? host_arena_.range(category.offset - arena_.size(), category.size)
                           : arena_.range(category.offset, category.size),
                      host ? MemorySpace::host : MemorySpace::device});
  }
  return result;
}

}  // namespace tessera
