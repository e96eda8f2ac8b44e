// Ranges one element shorter or beside their place, and shards of another rank.
#include <fmt/format.h>

#include <utility>

#include "mutants.hpp"
#include "tessera/plan/memory.hpp"

namespace tessera::plan {

namespace {

// Bytes of one element of what a range holds.
Bytes element_of(const Plan& plan, const Access& access) {
  const std::size_t buffer = access.range.buffer;
  if (access.tenant == no_unit) return buffer == plan.norms ? norm_size : Bytes(4);
  const UnitBuffers& buffers = plan.unit_buffers[access.tenant];
  const Precision& types = plan.precision(access.tenant);
  if (buffer == buffers.parameters && buffer != buffers.master) return size_of(types.parameter);
  if (buffer == buffers.gradient_slot) return size_of(types.gradient);
  return buffer == buffers.staging ? size_of(types.wire) : Bytes(4);
}

using Damage = void (*)(const Plan& plan, Access& access);

// Damages every access that `applies` accepts, one at a time.
template <typename Applies>
void damage_each(const Plan& plan, const MutantSink& sink, Applies applies, Damage damage) {
  for (std::size_t s = 0; s < plan.segments.size(); ++s) {
    for (std::size_t o = 0; o < plan.segments[s].operations.size(); ++o) {
      for (std::size_t a = 0; a < plan.segments[s].operations[o].accesses.size(); ++a) {
        const Access& access = plan.segments[s].operations[o].accesses[a];
        // An empty unit has no byte to lose, nor a place to be wrong about.
        if (access.range.size == Bytes(0)) {
          sink.exclude();
          continue;
        }
        if (!applies(access)) continue;
        Plan mutant = plan;
        damage(plan, mutant.segments[s].operations[o].accesses[a]);
        sink.take(std::move(mutant), fmt::format("{}, access {}", describe(plan, EventPoint{s, o}), a));
      }
    }
  }
}

bool any(const Access&) { return true; }
bool is_mine(const Access& access) { return access.range.rank_stride != Bytes(0); }

void one_element_shorter(const Plan& plan, const MutantSink& sink) {
  damage_each(plan, sink, any, [](const Plan& p, Access& access) { access.range.size -= element_of(p, access); });
}

void one_element_further(const Plan& plan, const MutantSink& sink) {
  damage_each(plan, sink, any, [](const Plan& p, Access& access) { access.range.offset += element_of(p, access); });
}

// With one rank, which is rank 0, the stride multiplies nothing.
void wrong_stride(const Plan& plan, const MutantSink& sink, Damage damage) {
  damage_each(
      plan, sink,
      [&](const Access& access) {
        if (is_mine(access) && plan.options.ranks == 1) sink.exclude();
        return is_mine(access) && plan.options.ranks > 1;
      },
      damage);
}

void everybodys_first_shard(const Plan& plan, const MutantSink& sink) {
  wrong_stride(plan, sink, [](const Plan&, Access& access) { access.range.rank_stride = Bytes(0); });
}
void stride_short(const Plan& plan, const MutantSink& sink) {
  wrong_stride(plan, sink, [](const Plan& p, Access& access) { access.range.rank_stride -= element_of(p, access); });
}
void stride_long(const Plan& plan, const MutantSink& sink) {
  wrong_stride(plan, sink, [](const Plan& p, Access& access) { access.range.rank_stride += element_of(p, access); });
}
void next_ranks_shard(const Plan& plan, const MutantSink& sink) {
  wrong_stride(plan, sink, [](const Plan&, Access& access) { access.range.offset += access.range.rank_stride; });
}

// Both forms of a unit's range in a buffer that holds the whole: they differ where there are other ranks.
bool stands_in_whole(const Plan& plan, const Access& access) {
  if (access.tenant == no_unit || plan.options.ranks == 1) return false;
  if (access.range.buffer == plan.unit_buffers[access.tenant].untrained) return false;
  const std::uint64_t held = plan.buffers[access.range.buffer].size.count();
  return held >= 2 * plan.layouts[access.tenant].padded_elements();
}

// In place of the whole.
void only_my_shard(const Plan& plan, const MutantSink& sink) {
  damage_each(
      plan, sink, [&](const Access& access) { return stands_in_whole(plan, access) && !is_mine(access); },
      [](const Plan& p, Access& access) {
        access.range.size = Bytes(access.range.size.count() / p.options.ranks);
        access.range.rank_stride = access.range.size;
      });
}

// In place of this rank's shard.
void everybodys_shards(const Plan& plan, const MutantSink& sink) {
  damage_each(
      plan, sink, [&](const Access& access) { return stands_in_whole(plan, access) && is_mine(access); },
      [](const Plan& p, Access& access) {
        access.range.size = access.range.size * p.options.ranks;
        access.range.rank_stride = Bytes(0);
      });
}

}  // namespace

std::vector<MutantClass> range_mutants() {
  return {{"range one element shorter", false, one_element_shorter},
          {"range one element further", false, one_element_further},
          {"everybody names the first shard", false, everybodys_first_shard},
          {"shard stride one element short", false, stride_short},
          {"shard stride one element long", false, stride_long},
          {"the next rank's shard", false, next_ranks_shard},
          {"only my shard in place of the whole", false, only_my_shard},
          {"the whole in place of my shard", false, everybodys_shards}};
}

}  // namespace tessera::plan
