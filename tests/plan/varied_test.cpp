// Units with types, frozen parameters, untrained state and wires of their own.
#include <doctest/doctest.h>

#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <set>

#include "checks.hpp"
#include "errors.hpp"
#include "matrix.hpp"
#include "tessera/plan/checkpoint_memory.hpp"
#include "tessera/plan/draw.hpp"
#include "tessera/plan/memory.hpp"
#include "tessera/plan/verify.hpp"

namespace tessera::plan::varied_test {

std::size_t count(const Plan& plan, OperationKind kind, std::size_t unit) {
  std::size_t result = 0;
  for (const Operation& each : operations_of(plan)) result += each.kind == kind && each.unit == unit;
  return result;
}

void check_frozen_parameters_have_masters_but_neither_gradients_nor_states(const Model& model,
                                                                           const PlanOptions& options,
                                                                           const Plan& plan) {
  const std::uint64_t ranks = options.ranks;
  std::uint64_t masters = 0, trained = 0;
  for (std::size_t u = 0; u < model.units.size(); ++u) {
    const std::uint64_t own = shard_of(model.units[u], ranks, false);
    const Sharding sharding = sharding_of(options);
    const auto shards = [&](AxisSet over) { return plan.mesh.size(plan.mesh.axes() - over); };
    const bool read = plan.precision(u).parameter == DType::fp32;
    masters +=
        4 * (own + shard_of(model.units[u], ranks, true)) * shards(read ? sharding.parameters : sharding.optimizer);
    trained += 4 * own * shards(sharding.optimizer);
  }
  std::uint64_t held = 0;
  for (const UnitBuffers& unit : plan.unit_buffers) held += plan.buffers[unit[Role::master].buffer].size.count();
  CHECK(held == masters);
  CHECK(bytes_in(plan, Category::optimizer).count() == 2 * trained);
  for (const std::size_t unit : {1u, 2u}) {
    CHECK_FALSE(plan.trains(unit));
    CHECK(!plan.unit_buffers[unit][Role::gradient].exists());
    CHECK(!plan.unit_buffers[unit][Role::gradient_slot].exists());
    for (const auto kind : {OperationKind::reduce_scatter, OperationKind::optimize, OperationKind::sum_of_squares,
                            OperationKind::prepare_gradient, OperationKind::accumulate, OperationKind::hook}) {
      CHECK(count(plan, kind, unit) == 0);
    }
  }
  CHECK(bytes_in(plan, Category::scalars).count() == scalars_size.count() + (8 * 3 + 16) * ranks);
}

void check_a_gradient_travels_in_the_wires_type_through_one_staging_buffer(const Model& model,
                                                                           const PlanOptions& options,
                                                                           const Plan& plan) {
  const bool local = options.micro_batches > 1 && plan.options.accumulation == AccumulationMode::local;
  CHECK((count(plan, OperationKind::convert, 3) > 0) == !local);
  CHECK((count(plan, OperationKind::convert, 4) > 0) == !local);
  CHECK(count(plan, OperationKind::convert, 0) == 0);
  const std::uint64_t fp32_of_3 = 4 * options.ranks * shard_of(model.units[3], options.ranks, false);
  const std::uint64_t fp16_of_4 = 2 * options.ranks * shard_of(model.units[4], options.ranks, false);
  CHECK(bytes_in(plan, Category::staging).count() == (local ? 0 : std::max(fp32_of_3, fp16_of_4)));
  for (const Operation& operation : operations_of(plan)) {
    if (operation.kind != OperationKind::reduce_scatter) continue;
    const bool sums = local || operation.group.contains(Axis::replicate);
    CHECK(operation.wire == (sums ? DType::fp32 : plan.precision(operation.unit).wire));
  }
}

void check_untrained_state_is_whole_on_every_rank_and_broadcast_once(const PlanOptions& options, const Plan& plan) {
  CHECK(bytes_in(plan, Category::buffers).count() == 4 * (256 + 256));
  for (const std::size_t unit : {0u, 2u}) {
    CHECK(count(plan, OperationKind::broadcast, unit) == (options.ranks > 1 ? 1 : 0));
  }
  CHECK(plan.find(SegmentKind::synchronize).has_value() == (options.ranks > 1));
}

void check_hooks_see_every_trained_unit_once_a_step_before_its_norm(const PlanOptions& options, const Plan& plan) {
  for (std::size_t unit = 0; unit < plan.units.size(); ++unit) {
    CHECK(count(plan, OperationKind::hook, unit) == (options.gradient_hooks && plan.trains(unit) ? 1 : 0));
  }
  for (const Segment& segment : plan.segments) {
    for (std::size_t o = 0; o < segment.operations.size(); ++o) {
      if (segment.operations[o].kind != OperationKind::hook) continue;
      CHECK(segment.operations[o - 1].kind != OperationKind::sum_of_squares);
      const auto norm = std::find_if(
          segment.operations.begin(), segment.operations.begin() + std::ptrdiff_t(o), [&](const Operation& other) {
            return other.kind == OperationKind::sum_of_squares && other.unit == segment.operations[o].unit;
          });
      CHECK(norm == segment.operations.begin() + std::ptrdiff_t(o));
    }
  }
}

// Every 23rd: all values of all options, and most of their pairs.
TEST_CASE("plans_of_varied_units_are_sound_and_treat_each_unit_as_it_says") {
  std::size_t index = 0;
  for_each_options([&](PlanOptions options) {
    if (index++ % 23 != 0) return;
    options.gradient_hooks = options.ranks % 2 == 1;
    options.threaded_compute = index % 2 == 1;
    const Model model = varied_model();
    INFO(describe(options));
    const Plan plan = compile(model, options);
    check_sound(verify(plan));
    check_frozen_parameters_have_masters_but_neither_gradients_nor_states(model, options, plan);
    check_a_gradient_travels_in_the_wires_type_through_one_staging_buffer(model, options, plan);
    check_untrained_state_is_whole_on_every_rank_and_broadcast_once(options, plan);
    check_hooks_see_every_trained_unit_once_a_step_before_its_norm(options, plan);
  });
}

TEST_CASE("a_layout_places_what_is_trained_first_and_shards_both_parts_evenly") {
  const UnitSpec unit{.name = "u",
                      .parameters = {{.name = "a", .shape = {5}, .frozen = true},
                                     {.name = "b", .shape = {300}},
                                     {.name = "c", .shape = {700}, .frozen = true},
                                     {.name = "d", .shape = {1}}}};
  for (const std::size_t ranks : {1u, 2u, 3u, 5u, 7u}) {
    const UnitLayout layout(unit, {{Axis::shard, ranks}});
    CHECK(layout.offset(1) == 0);
    CHECK(layout.offset(3) == 384);
    CHECK(layout.offset(0) == layout.padded_elements(Part::trained));
    CHECK(layout.offset(2) == layout.offset(0) + 128);
    std::vector<std::size_t> seen(4, 0);
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      std::size_t last = 0;
      for (const ShardPiece& piece : layout.pieces(rank)) {
        const Part part = layout.part(piece.parameter);
        CHECK(piece.shard_offset >= last);
        last = piece.shard_offset + piece.count;
        CHECK(piece.parameter_offset == seen[piece.parameter]);
        seen[piece.parameter] += piece.count;
        CHECK(layout.shard_begin(part, rank) + piece.shard_offset - layout.begin_in(layout.common(), part) ==
              layout.offset(piece.parameter) + piece.parameter_offset);
      }
      CHECK(last <= layout.shard_elements());
    }
    for (std::size_t p = 0; p < 4; ++p) CHECK(seen[p] == layout.elements(p));
  }
}

TEST_CASE("activations_are_a_region_of_their_own") {
  const Plan plan = compile(chain_model(2), {.ranks = 2, .activations = Bytes(5000)});
  CHECK(bytes_in(plan, Category::activations).count() == 5000);
  CHECK(memory(plan).categories[static_cast<std::size_t>(Category::activations)].size == Bytes(8192));
  CHECK(compile(chain_model(2), {}).activations == no_buffer);
}

TEST_CASE("checkpoints_take_staging_that_does_not_grow_with_the_model_and_in_the_background_a_copy_of_the_shards") {
  const auto bytes = [](std::size_t units, std::size_t ranks, Checkpointing checkpointing) {
    const Plan plan = compile(chain_model(units), {.ranks = ranks, .checkpointing = checkpointing});
    CHECK(verify(plan).ok());
    return bytes_in(plan, Category::checkpoints).count();
  };
  for (const std::size_t ranks : {1, 2, 3, 7}) {
    CHECK(bytes(3, ranks, Checkpointing::none) == 0);
    const std::size_t staging = checkpoint_staging(ranks).size().count();
    CHECK(bytes(3, ranks, Checkpointing::blocking) == staging);
    CHECK(bytes(5, ranks, Checkpointing::blocking) == staging);
    const Plan plan = compile(chain_model(3), {.ranks = ranks});
    std::size_t shards = 0;
    for (const UnitLayout& layout : plan.layouts) shards += layout.shard_elements();
    CHECK(bytes(3, ranks, Checkpointing::background) == staging + 4 * shards * (1 + plan.optimizer_states.size()));
  }
}

TEST_CASE("staging_of_checkpoints_is_a_block_and_a_part_per_rank_that_shrinks_to_a_page") {
  CHECK(checkpoint_staging(1).size() == checkpoint_block);
  CHECK(checkpoint_staging(4).size() == Bytes(2 * checkpoint_block.count()));
  CHECK(checkpoint_staging(1024).part == Bytes(4096));
  CHECK(checkpoint_staging(16384).part == Bytes(4096));
}

// Tenants of a slot that all differ in size must not all be compared with each other: four times the units take about
// four times as long, and the square would take sixteen.
TEST_CASE("time_grows_with_the_number_of_units_that_all_differ") {
  const auto processor_time = [](std::size_t count) {
    CompileInput input;
    for (std::size_t u = 0; u < count; ++u) {
      input.units.push_back(unit_of(fmt::format("u{}", u), {1000 + 37 * (u * 7919 % count), 5}));
    }
    input.programs = {Program::chain(count)};
    input.options.ranks = 8;
    input.optimizer_states = {"m", "v"};
    const std::clock_t begin = std::clock();
    CHECK(verify(compile(input)).ok());
    return static_cast<double>(std::clock() - begin);
  };
  processor_time(150);  // warm
  CHECK(processor_time(600) < 9.0 * processor_time(150));
}

TEST_CASE("a_model_in_which_everything_is_frozen_compiles_and_has_nothing_to_update") {
  Model model = chain_model(2);
  for (UnitSpec& unit : model.units) {
    for (ParameterSpec& parameter : unit.parameters) parameter.frozen = true;
  }
  for (const Strategy strategy : flat_strategies) {
    const Plan plan = compile(model, {.strategy = strategy, .precision = bf16_mixed, .ranks = 3});
    CHECK(verify(plan).ok());
    for (std::size_t unit = 0; unit < 2; ++unit) CHECK(count(plan, OperationKind::optimize, unit) == 0);
  }
}

TEST_CASE("the_hash_sees_types_frozen_parameters_buffers_hooks_activations_and_checkpointing") {
  const auto hash_of = [](auto change) {
    CompileInput input = input_of(varied_model(), {.ranks = 3});
    change(input);
    return hash(compile(input));
  };
  const std::set<std::uint64_t> hashes = {
      hash_of([](CompileInput&) {}),
      hash_of([](CompileInput& in) {
        in.units[0].precision.reset();
        in.options.precision = bf16_mixed;
      }),
      hash_of([](CompileInput& in) { in.units[0].parameters.back().frozen = false; }),
      hash_of([](CompileInput& in) { in.units[0].buffers[0].name = "u0.other"; }),
      hash_of([](CompileInput& in) { in.options.gradient_hooks = true; }),
      hash_of([](CompileInput& in) { in.options.fp32_sums = true; }),
      hash_of([](CompileInput& in) { in.options.threaded_compute = true; }),
      hash_of([](CompileInput& in) { in.options.granules = 3; }),
      hash_of([](CompileInput& in) { in.options.granules = 4; }),
      hash_of([](CompileInput& in) { in.options.activations = Bytes(1); }),
      hash_of([](CompileInput& in) { in.options.checkpointing = Checkpointing::blocking; }),
      hash_of([](CompileInput& in) { in.options.collective_staging = CollectiveStaging::parts; }),
      hash_of([](CompileInput& in) { in.options.collective_staging = CollectiveStaging::results; })};
  CHECK(hashes.size() == 13);
}

TEST_CASE("a_buffer_may_not_have_the_name_of_a_parameter") {
  CompileInput input = input_of(varied_model(), {});
  input.units[0].buffers[0].name = "u3.p0";
  CHECK(contains(usage_error([&] { compile(input); }), "two"));
}

}  // namespace tessera::plan::varied_test
