// Every plan of the matrix is sound, made of the program's windows, each gradient summed once, the same everywhere.
#include "tessera/plan/compile.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "checks.hpp"
#include "errors.hpp"
#include "matrix.hpp"
#include "tessera/plan/draw.hpp"
#include "tessera/plan/verify.hpp"

namespace tessera::plan::compile_test {

bool is_first(SegmentKind kind) { return kind == SegmentKind::only || kind == SegmentKind::first; }
bool is_last(SegmentKind kind) { return kind == SegmentKind::only || kind == SegmentKind::last; }

// A window that goes on behind a collective is no use of its own.
std::vector<WindowUse> windows_of(const Segment& segment) {
  std::vector<WindowUse> result;
  bool goes_on = false;
  for (const Operation& operation : segment.operations) {
    if (operation.kind == OperationKind::window && !goes_on) {
      result.push_back({operation.unit, operation.window, operation.resumes});
    }
    goes_on = operation.kind == OperationKind::collective;
  }
  return result;
}

std::size_t count(const Segment& segment, OperationKind kind, std::size_t unit) {
  return static_cast<std::size_t>(std::ranges::count_if(
      segment.operations, [&](const Operation& each) { return each.kind == kind && each.unit == unit; }));
}

std::vector<std::size_t> units_of(const Operation& operation) {
  std::vector<std::size_t> units;
  for (std::size_t a = 0; a < operation.accesses.size(); a += 2) units.push_back(operation.accesses[a].tenant);
  return units;
}

// How many operations of a kind move the unit's gradient, alone or with others'.
std::size_t moves_of(const Segment& segment, OperationKind kind, std::size_t unit) {
  std::ptrdiff_t result = 0;
  for (const Operation& operation : segment.operations) {
    if (operation.kind == kind) result += std::ranges::count(units_of(operation), unit);
  }
  return static_cast<std::size_t>(result);
}

// The units of each operation of a kind, in the order of a segment.
std::vector<std::vector<std::size_t>> buckets_of(const Plan& plan, SegmentKind segment, OperationKind kind) {
  std::vector<std::vector<std::size_t>> result;
  for (const Operation& operation : plan.segments[*plan.find(segment)].operations) {
    if (operation.kind == kind) result.push_back(units_of(operation));
  }
  return result;
}

const Access* access_to(const Operation& operation, std::size_t buffer, AccessMode mode) {
  for (const Access& access : operation.accesses) {
    if (access.range.buffer == buffer && access.mode == mode) return &access;
  }
  return nullptr;
}

// Between a backward window and the release of its gradient slot, exactly one operation takes the gradient away.
bool every_gradient_is_taken_once(const Plan& plan, const Segment& segment) {
  std::map<std::size_t, std::size_t> taken;  // by slot, while a unit holds it
  for (const Operation& operation : segment.operations) {
    for (const Access& access : operation.accesses) {
      const std::size_t slot = access.range.buffer;
      if (plan.buffers[slot].category != Category::gradient_slots) continue;
      if (access.mode == AccessMode::write && !taken.try_emplace(slot, 0).second) return false;
      if (access.mode == AccessMode::read) ++taken[slot];
      if (access.mode != AccessMode::discard) continue;
      if (taken[slot] != 1) return false;
      taken.erase(slot);
    }
  }
  return taken.empty();
}

// A gathered unit is given back once, in the segment that gathered it.
bool every_gather_is_released(const Plan& plan, const Segment& segment) {
  std::set<std::size_t> held;
  for (const Operation& operation : segment.operations) {
    if (operation.unit == no_unit) continue;
    const std::size_t slot = plan.unit_buffers[operation.unit][Role::parameters].buffer;
    const bool takes = operation.kind == OperationKind::cast && access_to(operation, slot, AccessMode::write);
    if (takes && !held.insert(operation.unit).second) return false;
    if (access_to(operation, slot, AccessMode::discard) && held.erase(operation.unit) != 1) return false;
  }
  return held.empty();
}

// One micro-batch's sums of a unit start anew or go on, as its place in the step demands.
bool sums_are_formed_right(const Plan& plan, const Segment& segment, std::size_t unit) {
  const bool local = plan.options.accumulation == AccumulationMode::local;
  const bool mesh = plan.options.replicas > 1;
  const bool replicas = mesh && plan.units[unit].apart.empty();
  bool started = local && !is_first(segment.kind);
  const UnitBuffers& buffers = plan.unit_buffers[unit];
  const bool in_place = buffers[Role::gradient_slot].buffer == buffers[Role::gradient].buffer;
  const bool is_the_sum = plan.mesh.size(Axis::shard) == 1 && in_place && replicas == mesh;
  bool summed_inside = is_the_sum;
  for (const Operation& operation : segment.operations) {
    const std::vector<std::size_t> units = units_of(operation);
    if (std::find(units.begin(), units.end(), unit) == units.end()) continue;
    if (operation.kind == OperationKind::accumulate) {
      if (operation.add != started) return false;
      started = true;
    }
    if (operation.kind != OperationKind::reduce_scatter) continue;
    // Inside the replica, and with several replicas across them: each sum of theirs anew, and divided at the end.
    const bool across = replicas && summed_inside;
    const bool adds = !across && !local && !is_first(segment.kind);
    const bool divides = is_last(segment.kind) && across == replicas;
    const std::size_t divisor = divides ? plan.options.ranks * plan.micro_batches(segment.program) : 1;
    if (operation.add != adds || operation.divisor != divisor) return false;
    if (operation.group != plan.mesh.group(across ? Axis::replicate : Axis::shard)) return false;
    summed_inside = true;
  }
  const std::size_t inside = !is_the_sum && (!local || is_last(segment.kind)) ? 1 : 0;
  const std::size_t across = replicas && is_last(segment.kind) ? 1 : 0;
  return moves_of(segment, OperationKind::reduce_scatter, unit) == inside + across;
}

TEST_CASE("verify_accepts_every_plan") {
  std::size_t plans = 0;
  for_each_nth_plan(tests::reduced() ? 83 : 13, [&](const Model& model, const PlanOptions& options, const Plan& plan) {
    ++plans;
    INFO(model.name << ", " << describe(options));
    check_sound(verify(plan));
  });
  MESSAGE("plans verified: " << plans);
}

void check_windows_open_in_the_order_of_the_program(const Model& model, const Plan& plan) {
  for (const Segment& segment : plan.segments) {
    CAPTURE(to_string(segment.kind));
    const Program& program = plan.programs[segment.program];
    const bool evaluates = segment.kind == SegmentKind::evaluation;
    CHECK(windows_of(segment) == (is_micro_batch(segment.kind) ? program.micro_batch
                                  : evaluates                  ? program.evaluation
                                                               : std::vector<WindowUse>()));
  }
  CHECK(plan.find(SegmentKind::evaluation).has_value() == !model.program.evaluation.empty());
}

void check_each_gradient_is_summed_and_reduced_exactly_once_and_divided_once(const Plan& plan) {
  for (const Segment& segment : plan.segments) {
    if (!is_micro_batch(segment.kind)) continue;
    CAPTURE(to_string(segment.kind));
    CHECK(every_gradient_is_taken_once(plan, segment));
    for (std::size_t unit = 0; unit < plan.units.size(); ++unit) {
      if (plan.trains(unit, segment.program)) {
        CHECK(sums_are_formed_right(plan, segment, unit));
      } else {
        CHECK(moves_of(segment, OperationKind::reduce_scatter, unit) == 0);
      }
    }
  }
}

void check_each_unit_is_optimized_and_its_norm_taken_once_a_step(const Plan& plan) {
  for (const Segment& segment : plan.segments) {
    for (std::size_t unit = 0; unit < plan.units.size(); ++unit) {
      const bool trained = plan.trains(unit, segment.program);
      CHECK(count(segment, OperationKind::optimize, unit) == (trained && segment.kind == SegmentKind::update ? 1 : 0));
      CHECK(count(segment, OperationKind::sum_of_squares, unit) == (trained && is_last(segment.kind) ? 1 : 0));
    }
  }
}

void check_a_unit_keeps_one_address_for_the_plans_whole_life(const Plan& plan) {
  for (const Operation& operation : operations_of(plan)) {
    if (operation.kind != OperationKind::window) continue;
    CHECK(operation.accesses.front().range.buffer == plan.unit_buffers[operation.unit][Role::parameters].buffer);
    CHECK(operation.accesses.front().range.offset == Bytes(0));
  }
}

void check_waits_are_between_streams_and_every_event_is_waited_for(const Plan& plan) {
  std::set<std::size_t> used;
  for (const Operation& operation : operations_of(plan)) {
    for (const Wait& wait : operation.waits) {
      used.insert(wait.event);
      if (wait.type != WaitType::throttle) CHECK(plan.at(plan.events[wait.event]).stream != operation.stream);
      if (wait.type == WaitType::order) CHECK(is_collective(plan.at(plan.events[wait.event]).kind));
    }
  }
  CHECK(used.size() == plan.events.size());
}

// They look at the same plans, each of which is compiled once for all.
TEST_CASE("every_plan_opens_its_programs_windows_sums_each_gradient_once_and_waits_only_where_it_must") {
  for_sampled_plans([](const Model& model, const PlanOptions& options, const Plan& plan) {
    INFO(model.name << ", " << describe(options));
    check_windows_open_in_the_order_of_the_program(model, plan);
    check_each_gradient_is_summed_and_reduced_exactly_once_and_divided_once(plan);
    check_each_unit_is_optimized_and_its_norm_taken_once_a_step(plan);
    check_a_unit_keeps_one_address_for_the_plans_whole_life(plan);
    check_waits_are_between_streams_and_every_event_is_waited_for(plan);
    if (options.strategy != Strategy::fsdp) return;
    for (const Segment& segment : plan.segments) CHECK(every_gather_is_released(plan, segment));
  });
}

// The chain has units of 4040, 4, 1024, 512 and 16396 bytes, from the last to the first.
TEST_CASE("small_units_are_reduced_together_up_to_the_cap_and_none_is_split") {
  const auto reductions = [](PlanOptions options, OperationKind kind = OperationKind::reduce_scatter) {
    options.ranks = 3;
    return buckets_of(compile(chain_model(5), options), SegmentKind::only, kind);
  };
  using Units = std::vector<std::vector<std::size_t>>;
  for (const Strategy strategy : flat_strategies) {
    const auto with = [&](std::size_t cap) { return reductions({.strategy = strategy, .bucket_cap = Bytes(cap)}); };
    CHECK(with(0) == Units{{4}, {3}, {2}, {1}, {0}});
    CHECK(with(1) == Units{{4}, {3}, {2}, {1}, {0}});
    CHECK(with(1536) == Units{{4}, {3, 2}, {1}, {0}});
    CHECK(with(1540) == Units{{4}, {3, 2, 1}, {0}});
    CHECK(with(5580) == Units{{4}, {3, 2, 1, 0}});
    CHECK(with(16396) == Units{{4}, {3, 2, 1, 0}});
    CHECK(with(1 << 20) == Units{{4, 3, 2, 1, 0}});
  }
  CHECK(reductions({.strategy = Strategy::fsdp}).size() == 5);
  for (const Strategy strategy : {Strategy::ddp, Strategy::zero1, Strategy::zero2}) {
    CHECK(reductions({.strategy = strategy}).size() == 1);
  }
  const PlanOptions bf16{.strategy = Strategy::ddp, .precision = bf16_mixed, .bucket_cap = Bytes(1540)};
  CHECK(reductions(bf16) == Units{{4}, {3, 2, 1}, {0}});
  CHECK(reductions(bf16, OperationKind::all_gather_sum) == reductions(bf16));
}

TEST_CASE("units_that_travel_in_other_types_or_add_up_on_the_rank_are_reduced_apart") {
  const auto reductions = [](const Model& model, const PlanOptions& options) {
    return buckets_of(compile(model, options), SegmentKind::last, OperationKind::reduce_scatter);
  };
  using Units = std::vector<std::vector<std::size_t>>;
  PlanOptions options{.ranks = 3, .micro_batches = 2, .bucket_cap = Bytes(1 << 30)};
  options.accumulation = AccumulationMode::reduced;
  CHECK(reductions(tied_model(), options) == Units{{2, 1}, {0}});
  CHECK(reductions(varied_model(), options) == Units{{4}, {3}, {0}});
  options.accumulation = AccumulationMode::local;  // everything adds up on the rank, and travels in fp32
  CHECK(reductions(tied_model(), options) == Units{{2, 1, 0}});
  CHECK(reductions(varied_model(), options) == Units{{4, 3, 0}});
}

// A parent's gradient is whole when its own window closes, behind those of what is nested in it.
TEST_CASE("gradients_of_nested_units_are_reduced_as_their_windows_close") {
  using Units = std::vector<std::size_t>;
  const Plan plan = compile(nested_model(), {.ranks = 3});
  Units prepared;
  for (const Operation& operation : plan.segments[*plan.find(SegmentKind::only)].operations) {
    if (operation.kind == OperationKind::prepare_gradient) prepared.push_back(operation.unit);
  }
  CHECK(prepared == Units{3, 0, 4, 1, 2, 4});
  CHECK(buckets_of(plan, SegmentKind::only, OperationKind::reduce_scatter) ==
        std::vector<Units>{{3}, {2}, {1}, {0}, {4}});
  CHECK(plan.backward_windows == Units{1, 1, 1, 1, 2});
}

TEST_CASE("threads_of_the_compute_stream_sum_squares_of_gradients_that_are_final_behind_their_windows") {
  const auto stream = [](const PlanOptions& options) {
    const Plan plan = compile(chain_model(3), options);
    std::set<StreamId> streams;
    for (const Operation& operation : operations_of(plan)) {
      if (operation.kind == OperationKind::sum_of_squares) streams.insert(operation.stream);
    }
    REQUIRE(streams.size() == 1);
    return *streams.begin();
  };
  CHECK(stream({.ranks = 1}) == StreamId::reduce);
  CHECK(stream({.ranks = 1, .threaded_compute = true}) == StreamId::compute);
  CHECK(stream({.ranks = 1, .gradient_hooks = true, .threaded_compute = true}) == StreamId::reduce);
  CHECK(stream({.ranks = 1, .micro_batches = 2, .threaded_compute = true}) == StreamId::reduce);
  CHECK(stream({.ranks = 1, .granules = 2, .threaded_compute = true}) == StreamId::reduce);
  CHECK(stream({.strategy = Strategy::ddp, .ranks = 2, .threaded_compute = true}) == StreamId::reduce);
}

TEST_CASE("one_rank_has_no_gathers") {
  for (const Strategy strategy : flat_strategies) {
    const Plan plan = compile(chain_model(3), {.strategy = strategy, .ranks = 1});
    for (const Operation& operation : operations_of(plan)) {
      CHECK((!is_collective(operation.kind) || operation.kind == OperationKind::reduce_scatter));
    }
  }
}

TEST_CASE("the_schedule_is_the_same_for_any_number_of_ranks_above_one") {
  for (const Model& model : all_models()) {
    for (const Strategy strategy : flat_strategies) {
      INFO(model.name << ", " << to_string(strategy));
      for (const std::size_t cap : bucket_caps) {
        const auto schedule = [&](std::size_t ranks) {
          return draw(
              compile(model, {.strategy = strategy, .ranks = ranks, .micro_batches = 3, .bucket_cap = Bytes(cap)}));
        };
        for (const std::size_t ranks : {3u, 7u, 64u}) CHECK(schedule(ranks) == schedule(2));
      }
    }
  }
}

TEST_CASE("the_update_is_throttled_by_the_one_before_it") {
  const Plan plan = compile(chain_model(3), {.ranks = 2});
  const std::size_t update = *plan.find(SegmentKind::update);
  const auto& operations = plan.segments[update].operations;
  const auto& waits = operations.front().waits;
  CHECK(
      std::count_if(waits.begin(), waits.end(), [&](const Wait& wait) {
        return wait.type == WaitType::throttle && plan.events[wait.event] == EventPoint{update, operations.size() - 1};
      }) == 1);
}

TEST_CASE("a_plan_never_says_automatic") {
  using enum AccumulationMode;
  const auto resolved = [](Strategy strategy, std::size_t micro_batches) {
    return compile(chain_model(2), {.strategy = strategy, .micro_batches = micro_batches}).options.accumulation;
  };
  CHECK(resolved(Strategy::ddp, 2) == local);
  CHECK(resolved(Strategy::zero1, 2) == local);
  CHECK(resolved(Strategy::zero2, 2) == reduced);
  CHECK(resolved(Strategy::fsdp, 2) == reduced);
  for (const Strategy strategy : flat_strategies) {
    CHECK(resolved(strategy, 1) == reduced);
    const auto cap = compile(chain_model(2), {.strategy = strategy}).options.bucket_cap;
    CHECK(cap == (strategy == Strategy::fsdp ? Bytes(0) : Bytes(1 << 20)));
  }
}

TEST_CASE("two_hundred_units_on_16384_ranks_are_compiled_and_verified") {
  const Plan plan = compile(chain_model(200), {.ranks = 16384, .micro_batches = 2, .prefetch = 2});
  CHECK(verify(plan).ok());
}

TEST_CASE("impossible_input_is_refused_by_name") {
  const auto refused = [](auto change) {
    CompileInput input = input_of(chain_model(2), {});
    change(input);
    return usage_error([&] { compile(input); });
  };
  CHECK(contains(refused([](CompileInput& in) { in.units.clear(); }), "no units"));
  CHECK(contains(refused([](CompileInput& in) { in.options.ranks = 0; }), "at least one rank"));
  CHECK(contains(refused([](CompileInput& in) { in.options.ranks = (1u << 20) + 1; }), "at most 1048576"));
  CHECK(contains(refused([](CompileInput& in) { in.options.micro_batches = 0; }), "micro_batches"));
  CHECK(contains(refused([](CompileInput& in) { in.options.micro_batches = static_cast<std::size_t>(-1); }),
                 "micro_batches"));
  CHECK(contains(refused([](CompileInput& in) { in.units[1].name = "u0"; }), "two units have the name \"u0\""));
  CHECK(contains(refused([](CompileInput& in) { in.units[1].parameters[0].name = "u0.p1"; }),
                 "two parameters have the name \"u0.p1\""));
  CHECK(contains(refused([](CompileInput& in) { in.programs = {Program::chain(1)}; }),
                 "program: unit 1 (u1) has no backward window"));
  CHECK(contains(refused([](CompileInput& in) { in.units[0].parameters[1].shape = {std::size_t{1} << 49}; }),
                 "\"u0.p1\""));
  CHECK(contains(refused([](CompileInput& in) { in.optimizer_states.front().type = DType::bf16; }),
                 "states are fp32 or u8"));
  CHECK(contains(refused([](CompileInput& in) { in.optimizer_states.front().block = 3; }), "choose a power of two"));
  CHECK(contains(refused([](CompileInput& in) { in.units[0].apart = Axis::replicate, in.units[0].prefix = "v."; }),
                 "does not begin with its prefix \"v.\""));
  CHECK(contains(refused([](CompileInput& in) {
                   in.options.mesh = MeshShape{{Axis::replicate, 2}, {Axis::shard, 2}};
                   in.options.sharding = Sharding{{}, {}, Axis::replicate};
                 }),
                 "sharded over those inside it"));
  CHECK(contains(usage_error([] { (void)MeshShape{{Axis::shard, 2}, {Axis::shard, 2}}; }), "named twice"));
}

TEST_CASE("collectives_that_cannot_be_are_refused_by_name") {
  const auto refused = [](const CollectiveSpec& collective, bool is_around = false) {
    Model model = is_around ? nested_model() : chain_model(2);
    model.units.front().collectives = {collective};
    return refusal(model, {});
  };
  using enum CollectiveKind;
  CHECK(contains(refused({.name = "u0.c"}), "all-gather \"u0.c\" is of 0 elements"));
  CHECK(contains(refused({.name = "u0.c", .type = DType::u8, .elements = 1}), "windows compute with fp32"));
  CHECK(contains(refused({.name = "u0.c", .kind = all_reduce, .elements = 1}), "sums are formed in fp32"));
  CHECK(contains(refused({.name = "u0.c", .kind = send, .elements = 1}), "this model has none"));
  CHECK(contains(refused({.name = "u0.c", .elements = 1}, true), "windows of other units open inside"));
}

}  // namespace tessera::plan::compile_test
