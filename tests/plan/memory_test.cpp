// The plan's bytes against the formulas of docs/numerics.md, written out here without the library's helpers.
#include "tessera/plan/memory.hpp"

#include <doctest/doctest.h>

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "checks.hpp"
#include "matrix.hpp"
#include "plan/collective_memory.hpp"
#include "tessera/plan/verify.hpp"

namespace tessera::plan::memory_test {

std::uint64_t category(const MemoryReport& report, Category which) {
  return report.categories[static_cast<std::size_t>(which)].size.count();
}

std::uint64_t category(const Model& model, const PlanOptions& options, Category which) {
  return category(memory(compile(model, options)), which);
}

// Bytes of the buffer of the given name, or 0.
std::uint64_t buffer_of(const Plan& plan, std::string_view name) {
  for (const Buffer& buffer : plan.buffers) {
    if (buffer.name == name) return buffer.size.count();
  }
  return 0;
}

// ddp and zero1 form the sums of micro-batches, and of tied windows, where they will be reduced.
bool keeps_sums_whole(const PlanOptions& options) {
  return options.strategy == Strategy::ddp || options.strategy == Strategy::zero1;
}

// Where programs say nothing they train what they come back to.
const Program& trainer_of(const Model& model, std::size_t unit) {
  for (const Program& other : model.further) {
    const auto& trained = other.trains;
    const bool named = trained && std::find(trained->begin(), trained->end(), unit) != trained->end();
    const auto& windows = other.micro_batch;
    const bool returns =
        std::find(windows.begin(), windows.end(), WindowUse{unit, WindowKind::backward}) != windows.end();
    if (named || (!trained && returns)) return other;
  }
  return model.program;
}

// An optimizer of the model has two states.
std::size_t states_of(const Program& program) {
  return program.optimizer_states ? program.optimizer_states->size() : 2;
}

bool has_several_micro_batches(const Program& program, const PlanOptions& options) {
  return program.micro_batches.value_or(options.micro_batches) > 1;
}

bool adds_up_on_the_rank(const Model& model, const PlanOptions& options, std::size_t unit) {
  const Program& trainer = trainer_of(model, unit);
  const auto& windows = trainer.micro_batch;
  const bool tied = std::count(windows.begin(), windows.end(), WindowUse{unit, WindowKind::backward}) > 1;
  const bool local_by_default = keeps_sums_whole(options) && options.accumulation == AccumulationMode::automatic;
  const bool local = local_by_default || options.accumulation == AccumulationMode::local;
  return tied || (has_several_micro_batches(trainer, options) && local);
}

// The one gradient of a rank that trains by itself is its own sum, in its own type where it is not rounded on its way.
std::uint64_t bytes_of_sum(const Model& model, const PlanOptions& options, std::size_t unit) {
  const Precision& types = model.units[unit].precision ? *model.units[unit].precision : options.precision;
  const bool adds = options.ranks > 1 || has_several_micro_batches(trainer_of(model, unit), options) ||
                    adds_up_on_the_rank(model, options, unit);
  if (adds || options.gradient_hooks || options.fp32_sums) return 4;
  return types.wire == types.gradient || types.wire == DType::fp32 ? size_of(types.gradient).count() : 4;
}

// Bytes that a category holds for the plan's whole life, not yet rounded to pages.
struct Persistent {
  std::uint64_t parameters = 0;
  std::uint64_t gradients = 0;
  std::uint64_t optimizer = 0;
  std::uint64_t accumulation = 0;
  // Gaps are those of `parameters` and `gradients`: behind buffers of 16 bits, because each buffer begins on 512 bytes.
  std::uint64_t gaps = 0;
};

Persistent persistent_of(const Model& model, const PlanOptions& options) {
  Persistent sum;
  const bool fp32 = options.precision.parameter == DType::fp32;
  const Sharding sharding = sharding_of(options);
  for (std::size_t unit = 0; unit < model.units.size(); ++unit) {
    // A unit in each replica has what a job of one replica's ranks has.
    const bool own = !model.units[unit].apart.empty();
    const std::size_t ranks = own ? options.ranks / options.replicas : options.ranks;
    const std::size_t in_common = own ? 1 : options.replicas;
    const std::uint64_t shard = shard_of(model.units[unit], ranks);
    const std::uint64_t whole = shard * ranks;
    const auto elements = [&](AxisSet over) {
      return over.empty() ? whole : over.contains(Axis::replicate) ? shard : shard * in_common;
    };
    sum.parameters += 4 * elements(fp32 ? sharding.parameters : sharding.optimizer);
    // Windows read, or gather, a copy where that is no cast of what is updated.
    const bool has_copy = sharding.parameters.empty() || (options.strategy == Strategy::hfsdp && !own);
    const auto add_aligned = [&](std::uint64_t& to, std::uint64_t bytes) {
      to += up(bytes, 512);
      sum.gaps += up(bytes, 512) - bytes;
    };
    if (has_copy && !fp32) add_aligned(sum.parameters, 2 * elements(sharding.parameters));
    const bool reduced_sums_there = has_several_micro_batches(trainer_of(model, unit), options) &&
                                    options.accumulation == AccumulationMode::reduced;
    const bool adds_up = adds_up_on_the_rank(model, options, unit);
    const bool in_place = adds_up && keeps_sums_whole(options) && !reduced_sums_there;
    // Each of several replicas has a sum of its own first.
    const bool replicas = in_common > 1 && sharding.gradients.contains(Axis::replicate);
    const AxisSet kept = in_place ? AxisSet() : replicas ? Axis::shard : sharding.gradients;
    add_aligned(sum.gradients, bytes_of_sum(model, options, unit) * elements(kept));
    sum.optimizer += 4 * states_of(trainer_of(model, unit)) * elements(sharding.optimizer);
    if (adds_up && !in_place) sum.accumulation += 4 * whole;
  }
  return sum;
}

const Model equal_units{"equal",
                        {unit_of("a", {4096}), unit_of("b", {4096}), unit_of("c", {4096}), unit_of("d", {4096})},
                        Program::chain(4)};

std::uint64_t largest(const Model& model, const PlanOptions& options, DType type) {
  std::uint64_t most = 0;
  for (const UnitSpec& unit : model.units) {
    most = std::max(most, shard_of(unit, options.ranks) * options.ranks * size_of(type).count());
  }
  return most;
}

void check_persistent_bytes_are_those_of_the_table(const Model& model, const Plan& plan, const Persistent& expected) {
  const MemoryReport report = memory(plan);
  CHECK(category(report, Category::parameters) == up(expected.parameters, 4096));
  CHECK(category(report, Category::gradients) == up(expected.gradients, 4096));
  CHECK(category(report, Category::optimizer) == up(expected.optimizer, 4096));
  CHECK(category(report, Category::accumulation) == up(expected.accumulation, 4096));
  std::uint64_t scalars = 0;  // of each program, and a row of norms for each rank
  for (std::size_t program = 0; program <= model.further.size(); ++program) {
    const auto units = std::count(plan.trainers.begin(), plan.trainers.end(), program);
    scalars = up(scalars, 512) + 512 + (8 * static_cast<std::uint64_t>(units) + 16) * plan.options.ranks;
  }
  CHECK(category(report, Category::scalars) == up(scalars, 4096));
}

void check_regions_are_page_aligned_disjoint_and_hold_their_buffers(const Plan& plan) {
  const MemoryReport report = memory(plan);
  Bytes end;
  Bytes sum;
  for (const CategoryBytes& region : report.categories) {
    sum += region.size;
    if (region.size == Bytes(0)) continue;
    CHECK(region.offset.count() % 4096 == 0);
    CHECK(region.size.count() % 4096 == 0);
    CHECK(region.offset >= end);
    end = region.offset + region.size;
  }
  CHECK(report.peak == sum);
  CHECK(report.peak == end);
  for (const Buffer& buffer : plan.buffers) {
    const CategoryBytes& region = report.categories[static_cast<std::size_t>(buffer.category)];
    CHECK(buffer.offset.count() % 512 == 0);
    CHECK(buffer.offset >= region.offset);
    CHECK((buffer.size == Bytes(0) || buffer.offset + buffer.size <= region.offset + region.size));
  }
}

TEST_CASE("persistent_bytes_are_those_of_the_table_in_regions_and_live_ones_lie_between_them_and_the_peak") {
  for_sampled_plans([](const Model& model, const PlanOptions& options, const Plan& plan) {
    INFO(model.name << ", " << describe(options));
    const Persistent expected = persistent_of(model, options);
    check_persistent_bytes_are_those_of_the_table(model, plan, expected);
    check_regions_are_page_aligned_disjoint_and_hold_their_buffers(plan);
    const std::uint64_t persistent =
        expected.parameters + expected.gradients + expected.optimizer + expected.accumulation;
    CHECK(memory(plan).live.count() >= persistent - expected.gaps);
    CHECK(memory(plan).live <= memory(plan).peak);
  });
}

// 2^20 elements, divisible by every number of ranks here with nothing to pad.
TEST_CASE("bytes_per_parameter_are_those_of_numerics_md") {
  const std::uint64_t elements = 1u << 20;
  const Model model{"one large unit", {unit_of("u", {elements})}, Program::chain(1)};
  for (const std::size_t ranks : {1u, 2u, 4u, 8u}) {
    const auto persistent = [&](Strategy strategy) {
      const MemoryReport report =
          memory(compile(model, {.strategy = strategy, .precision = bf16_mixed, .ranks = ranks, .micro_batches = 2}));
      return category(report, Category::parameters) + category(report, Category::gradients) +
             category(report, Category::optimizer) + category(report, Category::accumulation);
    };
    CHECK(persistent(Strategy::ddp) == 18 * elements);
    CHECK(persistent(Strategy::zero1) == 6 * elements + 12 * elements / ranks);
    CHECK(persistent(Strategy::zero2) == 2 * elements + 16 * elements / ranks);
    CHECK(persistent(Strategy::fsdp) == 16 * elements / ranks);
  }
}

TEST_CASE("equal_units_take_one_slot_more_than_the_prefetch_depth_and_two_gradient_slots") {
  for (const std::size_t prefetch : {0u, 1u, 2u, 3u, 9u}) {
    for (const bool overlap : {false, true}) {
      const MemoryReport report = memory(compile(
          equal_units, {.precision = bf16_mixed, .ranks = 4, .prefetch = prefetch, .overlap_reduction = overlap}));
      const std::size_t slots = std::min<std::size_t>(1 + prefetch, 4);
      CHECK(category(report, Category::parameter_slots) == slots * 2 * 4096);
      CHECK(category(report, Category::gradient_slots) == (overlap ? 2u : 1u) * 2 * 4096);
    }
  }
}

// Masters in another type are copied to slots on one rank, too.
TEST_CASE("windows_read_masters_where_parameters_are_sharded_over_one_rank_alone") {
  const Precision bf16_masters{.parameter = DType::bf16, .gradient = DType::bf16, .masters = DType::bf16};
  for (const Strategy strategy : {Strategy::fsdp, Strategy::hsdp, Strategy::hfsdp}) {
    for (const auto& mesh : {std::pair<std::size_t, std::size_t>{1, 1}, {3, 3}, {4, 2}}) {
      const std::size_t ranks = mesh.first, replicas = mesh.second;
      const auto slots = [&](const Precision& precision) {
        const Plan plan = compile(chain_model(3),
                                  {.strategy = strategy, .precision = precision, .ranks = ranks, .replicas = replicas});
        return category(memory(plan), Category::parameter_slots);
      };
      const bool is_sharded = plan::sharding_of({.strategy = strategy, .ranks = ranks, .replicas = replicas})
                                      .parameters.contains(Axis::replicate)
                                  ? ranks > 1
                                  : ranks > replicas;
      CAPTURE(strategy.name);
      CAPTURE(ranks);
      CHECK((slots(fp32_precision) > 0) == is_sharded);
      CHECK((slots(bf16_masters) > 0) == is_sharded);
      CHECK(slots(bf16_mixed) > 0);
    }
  }
}

// Units of 8192 bytes in bf16: alone, in two pairs, and all together.
TEST_CASE("units_of_a_bucket_take_a_gradient_slot_each_and_one_of_the_next_bucket_where_reductions_overlap") {
  for (const Strategy strategy : flat_strategies) {
    for (const bool overlap : {false, true}) {
      const auto bytes = [&](std::uint64_t units, DType wire, Category which) {
        const PlanOptions options{.strategy = strategy,
                                  .precision = {DType::bf16, DType::bf16, wire},
                                  .ranks = 4,
                                  .overlap_reduction = overlap,
                                  .bucket_cap = units * 4096 * size_of(wire)};
        return category(equal_units, options, which);
      };
      CHECK(bytes(1, DType::bf16, Category::gradient_slots) == (overlap ? 2u : 1u) * 8192);
      CHECK(bytes(2, DType::bf16, Category::gradient_slots) == (overlap ? 3u : 2u) * 8192);
      CHECK(bytes(4, DType::bf16, Category::gradient_slots) == 4 * 8192);
      // A gradient that changes its type leaves its slot at once and waits in staging, one bucket at a time.
      for (const std::uint64_t units : {1u, 2u, 4u}) {
        CHECK(bytes(units, DType::fp32, Category::gradient_slots) == (overlap ? 2u : 1u) * 8192);
        CHECK(bytes(units, DType::fp32, Category::staging) == units * 16384);
      }
    }
  }
}

// A gradient that a strategy keeps whole, or one rank keeps, stands where windows write, unless gradients add up or are
// rounded on their way. In 16 bits that is so where nobody adds anything.
TEST_CASE("gradients_stand_where_their_sums_do") {
  const Model model = chain_model(3);
  const auto slots = [&](const PlanOptions& options) { return category(model, options, Category::gradient_slots); };
  for (const Strategy strategy : flat_strategies) {
    INFO(to_string(strategy));
    CHECK((slots({.strategy = strategy, .ranks = 4}) == 0) == (strategy == Strategy::ddp));
    CHECK(slots({.strategy = strategy, .ranks = 1}) == 0);
    CHECK(slots({.strategy = strategy, .ranks = 1, .micro_batches = 2}) > 0);
    CHECK(slots({.strategy = strategy, .precision = bf16_mixed, .ranks = 2}) > 0);
    CHECK(slots({.strategy = strategy, .precision = bf16_mixed, .ranks = 1}) == 0);
    CHECK(slots({.strategy = strategy, .precision = {DType::bf16, DType::bf16, DType::fp32}, .ranks = 1}) == 0);
    CHECK(slots({.strategy = strategy, .precision = {DType::bf16, DType::fp16, DType::bf16}, .ranks = 1}) > 0);
    CHECK(slots({.strategy = strategy, .precision = bf16_mixed, .ranks = 1, .micro_batches = 2}) > 0);
    CHECK(slots({.strategy = strategy, .precision = bf16_mixed, .ranks = 1, .gradient_hooks = true}) > 0);
    CHECK(slots({.strategy = strategy, .precision = bf16_mixed, .ranks = 1, .fp32_sums = true}) > 0);
    CHECK(slots({.strategy = strategy, .precision = {DType::fp32, DType::fp32, DType::bf16}, .ranks = 1}) > 0);
  }
  // Replicas of one rank that train by themselves keep their own gradients.
  const PlanOptions apart{
      .strategy = Strategy::ddp, .precision = bf16_mixed, .ranks = 2, .replicas = 2, .outer_every = 2};
  CHECK(slots(apart) == 0);
  // A unit of another type has the one slot for itself.
  Model mixed = chain_model(3);
  mixed.units[1].precision = bf16_mixed;
  const Plan plan = compile(mixed, {.strategy = Strategy::ddp, .ranks = 2});
  CHECK(plan.unit_buffers[0][Role::gradient_slot].buffer == plan.unit_buffers[0][Role::gradient].buffer);
  CHECK(plan.buffers[plan.unit_buffers[1][Role::gradient_slot].buffer].category == Category::gradient_slots);
  CHECK(verify(plan).ok());
}

TEST_CASE("slots_of_a_chain_are_at_most_one_more_than_the_prefetch_depth_times_the_largest_unit") {
  for (const std::size_t units : {1u, 2u, 3u, 5u, 8u}) {
    const Model model = chain_model(units);
    for_each_gathering({.ranks = 3}, [&](const PlanOptions& options) {
      INFO(model.name << ", " << describe(options));
      const MemoryReport report = memory(compile(model, options));
      const std::uint64_t parameters = category(report, Category::parameter_slots);
      const std::uint64_t slots = options.reshard_after_forward == true ? 1 + options.prefetch : units;
      CHECK(parameters <= up(slots * largest(model, options, options.precision.parameter), 4096));
      if (options.strategy != Strategy::fsdp) CHECK(parameters == 0);
      CHECK(category(report, Category::gradient_slots) <=
            up(2 * largest(model, options, options.precision.gradient), 4096));
    });
  }
}

// numerics.md: persistent + 2B of parameters + 2B of gradients, B less when reductions do not overlap.
TEST_CASE("live_bytes_of_fsdp_keep_to_their_bound") {
  for (const std::size_t units : {1u, 2u, 3u, 5u, 8u}) {
    const Model model = chain_model(units);
    for (const std::size_t ranks : {1u, 2u, 3u, 7u}) {
      for (const bool overlap : {false, true}) {
        const PlanOptions options{.ranks = ranks, .prefetch = 1, .overlap_reduction = overlap};
        INFO(model.name << ", " << describe(options));
        const Persistent held = persistent_of(model, options);
        const std::uint64_t scalars = 72 + (8 * units + 16) * ranks;
        const std::uint64_t bound = held.parameters + held.gradients + held.optimizer + scalars +
                                    (overlap ? 4 : 3) * largest(model, options, DType::fp32);
        CHECK(memory(compile(model, options)).live.count() <= bound);
      }
    }
  }
}

TEST_CASE("local_accumulation_adds_a_whole_fp32_gradient_to_zero2_and_fsdp") {
  const Model model{"one", {unit_of("u", {4096})}, Program::chain(1)};
  const auto accumulation = [&](Strategy strategy, AccumulationMode mode) {
    return category(model, {.strategy = strategy, .ranks = 4, .micro_batches = 2, .accumulation = mode},
                    Category::accumulation);
  };
  CHECK(accumulation(Strategy::fsdp, AccumulationMode::local) == 4 * 4096);
  CHECK(accumulation(Strategy::fsdp, AccumulationMode::reduced) == 0);
  CHECK(accumulation(Strategy::zero2, AccumulationMode::local) == 4 * 4096);
  CHECK(accumulation(Strategy::zero1, AccumulationMode::local) == 0);
  CHECK(accumulation(Strategy::ddp, AccumulationMode::local) == 0);
}

TEST_CASE("staging_of_collectives_holds_the_largest_reduction_up_to_64_mib") {
  const std::size_t elements = 1u << 20;
  const Model model{"two units", {unit_of("a", {elements}), unit_of("b", {1000})}, Program::chain(2)};
  const auto plan_of = [&](const Model& of, std::size_t ranks, const Precision& precision, CollectiveStaging staging) {
    return compile(of, {.precision = precision, .ranks = ranks, .collective_staging = staging});
  };
  for (const std::size_t ranks : {1u, 2u, 4u}) {
    CAPTURE(ranks);
    const Plan none = plan_of(model, ranks, fp32_precision, CollectiveStaging::none);
    CHECK(category(memory(none), Category::collectives) == 0);
    const Plan parts = plan_of(model, ranks, fp32_precision, CollectiveStaging::parts);
    CHECK(buffer_of(parts, "gather staging") == 256 * ranks);
    CHECK(buffer_of(parts, "reduce staging") == 4 * elements);
    CHECK(buffer_of(plan_of(model, ranks, bf16_mixed, CollectiveStaging::parts), "reduce staging") == 2 * elements);
    CHECK(buffer_of(plan_of(model, ranks, bf16_mixed, CollectiveStaging::results), "reduce staging") ==
          2 * elements / ranks);
    const Model tiny{"one element", {unit_of("a", {1})}, Program::chain(1)};
    CHECK(buffer_of(plan_of(tiny, ranks, bf16_mixed, CollectiveStaging::results), "reduce staging") == 256 * ranks);
  }
  const Model large{"one large unit", {unit_of("a", {100u << 20})}, Program::chain(1)};
  CHECK(buffer_of(plan_of(large, 2, fp32_precision, CollectiveStaging::parts), "reduce staging") == 64u << 20);
  CHECK(buffer_of(plan_of(large, 2, fp32_precision, CollectiveStaging::results), "reduce staging") == 200u << 20);
}

// Rounds of such a sum are as large as its staging, and the other role has another largest unit.
TEST_CASE("sums_of_tied_units_have_as_much_staging_in_both_roles") {
  std::vector<RankRole> roles;
  for (const std::size_t role : {0u, 1u}) {
    Model model{"tied", {unit_of("a", {12u << 20}), unit_of("b", {role == 0 ? 100u << 20 : 1})}, Program::chain(2)};
    model.units[0].is_tied_to = role == 0;
    model.units[0].tied = role == 1;
    roles.push_back({fmt::format("{}", role), compile(model, {.mesh = MeshShape{{Axis::pipeline, 2}, {Axis::shard, 2}},
                                                              .role = role,
                                                              .role_units = 2,
                                                              .collective_staging = CollectiveStaging::results})});
  }
  CHECK(buffer_of(roles[0].plan, "reduce staging") == 200u << 20);
  CHECK(buffer_of(roles[1].plan, "reduce staging") == 48u << 20);
  CHECK(tied_staging(roles) == Bytes(48u << 20));
  std::swap(roles[0], roles[1]);
  CHECK(tied_staging(roles) == Bytes(48u << 20));
}

// Where its optimizer would read at places in step with each other, banks of memory would serve one after the other.
TEST_CASE("large_buffers_of_a_unit_do_not_stand_a_power_of_two_apart") {
  const std::uint64_t period = 8u << 20;
  const std::uint64_t least = 12u << 10;
  for (const std::uint64_t mebibytes : {8u, 16u, 32u, 256u}) {
    for (const std::size_t ranks : {1u, 2u}) {
      const UnitSpec unit = unit_of("u", {ranks * (mebibytes << 18)});
      const Model model{"units of powers of two", {unit, unit_of("v", {ranks * (mebibytes << 18)})}, Program::chain(2)};
      const Plan plan = compile(model, {.ranks = ranks});
      CAPTURE(mebibytes);
      for (const UnitBuffers& of : plan.unit_buffers) {
        std::vector<std::size_t> read = {of[Role::master].buffer, of[Role::gradient].buffer};
        for (const Content& state : of.states) read.push_back(state.buffer);
        for (std::size_t i = 0; i < read.size(); ++i) {
          for (std::size_t j = 0; j < i; ++j) {
            const std::uint64_t a = plan.buffers[read[i]].offset.count();
            const std::uint64_t b = plan.buffers[read[j]].offset.count();
            const std::uint64_t apart = (std::max(a, b) - std::min(a, b)) % period;
            CHECK(std::min(apart, period - apart) >= least);
          }
        }
      }
      // Staging takes little, and is part of the arena.
      std::uint64_t held = 0;
      std::uint64_t end = 0;
      for (const Buffer& buffer : plan.buffers) {
        held += buffer.size.count();
        end = std::max(end, (buffer.offset + buffer.size).count());
      }
      const std::uint64_t peak = memory(plan).peak.count();
      CHECK(end <= peak);
      CHECK(peak - held <= 8 * 6 * 3 * 4096);
    }
  }
}

TEST_CASE("small_buffers_stand_side_by_side") {
  const Model model{"small units", {unit_of("u", {1u << 18}), unit_of("v", {1u << 18})}, Program::chain(2)};
  const MemoryReport report = memory(compile(model, {.ranks = 1}));
  CHECK(category(report, Category::optimizer) == 4u << 20);
}

}  // namespace tessera::plan::memory_test
