// Ranges one element shorter or beside their place, and shards of another rank.
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "mutants.hpp"
#include "tessera/plan/memory.hpp"

namespace tessera::plan {

namespace {

// Bytes of one element of what a range holds.
Bytes element_of(const Plan& plan, const Access& access) {
  const std::size_t buffer = access.range.buffer;
  const auto is_of_norms = [&](const ProgramBuffers& program) { return program.norms == buffer; };
  if (access.tenant == no_unit) {
    const auto& programs = plan.program_buffers;
    return std::any_of(programs.begin(), programs.end(), is_of_norms) ? norm_size : Bytes(4);
  }
  return access.role == Role::collected ? Bytes(4) : size_of(plan.content(access).type);
}

using Damage = std::function<void(const Plan& plan, Access& access)>;

// Damages every access that applies(plan, access) accepts, one at a time.
template <typename Applies>
MakeMutants each_access(Applies applies, const Damage& damage) {
  return [=](const Plan& plan, const MutantSink& sink) {
    each_operation(plan, [&](EventPoint point, const Operation& operation) {
      for (std::size_t a = 0; a < operation.accesses.size(); ++a) {
        const Access& access = operation.accesses[a];
        // An empty unit has no byte to lose, nor a place to be wrong about.
        if (access.range.size == Bytes(0)) {
          sink.exclude();
          continue;
        }
        if (!applies(plan, access)) continue;
        Plan mutant = plan;
        damage(plan, operation_at(mutant, point).accesses[a]);
        sink.take(std::move(mutant), fmt::format("{}, access {}", describe(plan, point), a));
      }
    });
  };
}

bool any(const Plan&, const Access&) { return true; }
bool has_stride(const Plan&, const Access& access) { return access.range.strides != decltype(Range::strides){}; }

// Each stride by itself, with its axis. One along an axis of one rank is 0, and there is nothing to damage.
MakeMutants each_stride(const std::function<void(const Plan& plan, Access& access, std::size_t axis)>& damage) {
  return [=](const Plan& plan, const MutantSink& sink) {
    for (std::size_t axis = 0; axis < axis_count; ++axis) {
      each_access([=](const Plan&, const Access& access) { return access.range.strides[axis] != Bytes(0); },
                  [=](const Plan& p, Access& access) { damage(p, access, axis); })(plan, sink);
    }
  };
}

// Moves every stride to another axis, of the mesh or not.
void axes_exchanged(const Plan& plan, const MutantSink& sink) {
  each_access(has_stride, [](const Plan&, Access& access) {
    std::rotate(access.range.strides.begin(), access.range.strides.begin() + 1, access.range.strides.end());
  })(plan, sink);
  each_access([](const Plan&, const Access& access) { return access.range.strides[1] != access.range.strides[3]; },
              [](const Plan&, Access& access) { std::swap(access.range.strides[1], access.range.strides[3]); })(plan,
                                                                                                                sink);
}

// Both forms of a unit's range in a buffer that holds the whole: they differ where there are other ranks.
bool stands_in_whole(const Plan& plan, const Access& access) {
  if (access.tenant == no_unit || plan.options.ranks == 1) return false;
  if (access.role == Role::untrained) return false;
  const std::uint64_t held = plan.buffers[access.range.buffer].size.count();
  return held >= 2 * plan.layouts[access.tenant].padded_elements();
}

// In place of the whole.
void only_my_shard(const Plan& plan, Access& access) {
  const Bytes whole = access.range.size;
  access.range.size = Bytes(whole.count() / plan.options.ranks);
  Bytes stride = access.range.size;
  plan.mesh.outwards_in([&](Axis axis) {
    if (plan.mesh.size(axis) > 1) access.range.strides[static_cast<std::size_t>(axis)] = stride;
    stride = stride * plan.mesh.size(axis);
  });
}

// In place of this rank's shard.
void everybodys_shards(const Plan& plan, Access& access) {
  const Coordinates last = plan.mesh.last();
  for (std::size_t axis = 0; axis < axis_count; ++axis) access.range.size += access.range.strides[axis] * last[axis];
  access.range.strides = {};
}

// Two operands of one operation that stand elsewhere change places, with their names or without.
void operands_exchanged(const Plan& plan, const MutantSink& sink) {
  each_operation(plan, [&](EventPoint point, const Operation& operation) {
    const std::vector<Access>& accesses = operation.accesses;
    for (std::size_t a = 0; a < accesses.size(); ++a) {
      for (std::size_t b = 0; b < a; ++b) {
        if (accesses[a].range == accesses[b].range || accesses[a].tenant != accesses[b].tenant) continue;
        if (accesses[a].range.size == Bytes(0) || accesses[b].range.size == Bytes(0)) continue;
        // A window finds what came of its collectives by the place, so that their order means nothing.
        const bool both_came = accesses[a].role == Role::collected && accesses[b].role == Role::collected &&
                               accesses[a].mode == AccessMode::read && accesses[b].mode == AccessMode::read;
        if (both_came) continue;
        Plan places = plan;
        auto& of_places = operation_at(places, point).accesses;
        std::swap(of_places[a].range, of_places[b].range);
        sink.take(std::move(places), fmt::format("{}, {} and {}", describe(plan, point), b, a));
        if (accesses[a].mode == accesses[b].mode || accesses[a].role == accesses[b].role) continue;
        Plan modes = plan;
        auto& of_modes = operation_at(modes, point).accesses;
        std::swap(of_modes[a].mode, of_modes[b].mode);
        sink.take(std::move(modes), fmt::format("{}, modes {} and {}", describe(plan, point), b, a));
      }
    }
  });
}

// A buffer is said to hold values of another type, or sharded over another axis.
void content_of_another_kind(const Plan& plan, const MutantSink& sink) {
  for (std::size_t unit = 0; unit < plan.units.size(); ++unit) {
    for (std::size_t role = 0; role < role_count; ++role) {
      const Content& content = plan.unit_buffers[unit][static_cast<Role>(role)];
      if (!content.exists()) continue;
      const auto take = [&](const std::function<void(Content&)>& change) {
        Plan mutant = plan;
        change(mutant.unit_buffers[unit][static_cast<Role>(role)]);
        sink.take(std::move(mutant),
                  fmt::format("{} of {}", to_string(static_cast<Role>(role)), plan.units[unit].name));
      };
      take([](Content& said) { said.type = said.type == DType::fp16 ? DType::bf16 : DType::fp16; });
      take([](Content& said) { said.over = said.over | Axis::pipeline; });
      take([](Content& said) {
        said.space = said.space == MemorySpace::host ? MemorySpace::device : MemorySpace::host;
      });
    }
  }
}

// A state is said to have values of another type or for other blocks than its optimizer says, in its place or in the
// slot; or the optimizer says so of what stands there.
void state_of_another_kind(const Plan& plan, const MutantSink& sink) {
  const auto other = [](DType type) { return type == DType::fp32 ? DType::u8 : DType::fp32; };
  for (std::size_t unit = 0; unit < plan.units.size(); ++unit) {
    const UnitBuffers& buffers = plan.unit_buffers[unit];
    for (std::size_t state = 0; state < buffers.states.size(); ++state) {
      const std::string place = fmt::format("state {} of {}", state, plan.units[unit].name);
      if (plan.layouts[unit].shard_elements(Part::trained) == 0) {
        sink.exclude();
        continue;
      }
      for (std::vector<Content> UnitBuffers::*const contents : {&UnitBuffers::states, &UnitBuffers::state_slots}) {
        if ((buffers.*contents).empty()) continue;
        Plan type = plan, block = plan;
        Content& of_type = (type.unit_buffers[unit].*contents)[state];
        of_type.type = other(of_type.type);
        sink.take(std::move(type), place);
        (block.unit_buffers[unit].*contents)[state].block *= 2;
        sink.take(std::move(block), place);
      }
      if (!plan.units[unit].optimizer_states) continue;
      Plan type = plan, block = plan, fewer = plan;
      StateSpec& of_type = (*type.units[unit].optimizer_states)[state];
      of_type.type = other(of_type.type);
      sink.take(std::move(type), place);
      (*block.units[unit].optimizer_states)[state].block *= 2;
      sink.take(std::move(block), place);
      fewer.units[unit].optimizer_states->pop_back();
      sink.take(std::move(fewer), place);
    }
  }
}

// Parameters and shards are aligned as for optimizers without blocks.
void blocks_of_two_ranks(const Plan& plan, const MutantSink& sink) {
  for (std::size_t unit = 0; unit < plan.units.size(); ++unit) {
    if (!plan.trains(unit) || alignment_for(plan.unit_states(unit)) == alignment_elements) continue;
    Plan mutant = plan;
    mutant.layouts[unit] = UnitLayout(plan.units[unit], plan.mesh);
    sink.take(std::move(mutant), plan.units[unit].name);
  }
}

}  // namespace

std::vector<MutantClass> range_mutants() {
  const auto whole = [](const Plan& plan, const Access& access) {
    return stands_in_whole(plan, access) && !has_stride(plan, access);
  };
  const auto shard = [](const Plan& plan, const Access& access) {
    return stands_in_whole(plan, access) && has_stride(plan, access);
  };
  return {{"range one element shorter", false,
           each_access(any, [](const Plan& p, Access& access) { access.range.size -= element_of(p, access); })},
          {"range one element further", false,
           each_access(any, [](const Plan& p, Access& access) { access.range.offset += element_of(p, access); })},
          {"everybody names the first shard", false,
           each_stride([](const Plan&, Access& access, std::size_t axis) { access.range.strides[axis] = Bytes(0); })},
          {"shard stride one element short", false, each_stride([](const Plan& p, Access& access, std::size_t axis) {
             access.range.strides[axis] -= element_of(p, access);
           })},
          {"shard stride one element long", false, each_stride([](const Plan& p, Access& access, std::size_t axis) {
             access.range.strides[axis] += element_of(p, access);
           })},
          {"the next rank's shard", false, each_stride([](const Plan&, Access& access, std::size_t axis) {
             access.range.offset += access.range.strides[axis];
           })},
          {"axes of the mesh exchanged", false, axes_exchanged},
          // One axis less in the placement: this rank's place among those along the others, and all that stands there.
          {"sharded over one axis less", false, each_stride([](const Plan& p, Access& access, std::size_t axis) {
             access.range.size = access.range.size * p.mesh.size(static_cast<Axis>(axis));
             access.range.strides[axis] = Bytes(0);
           })},
          {"operands exchanged", false, operands_exchanged},
          {"content of another kind", false, content_of_another_kind},
          {"only my shard in place of the whole", false, each_access(whole, only_my_shard)},
          {"the whole in place of my shard", false, each_access(shard, everybodys_shards)}};
}

std::vector<MutantClass> state_mutants() {
  return {{"state of another kind", false, state_of_another_kind}, {"blocks of two ranks", false, blocks_of_two_ranks}};
}

}  // namespace tessera::plan
