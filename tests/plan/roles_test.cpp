// Two stages of a pipeline: two roles of ranks, each with a plan, that pass activations and gradients to each other.
#include "tessera/plan/roles.hpp"

#include <doctest/doctest.h>

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <string>
#include <tuple>
#include <vector>

#include "checks.hpp"
#include "errors.hpp"
#include "models.hpp"
#include "mutants.hpp"
#include "plan_edits.hpp"
#include "tessera/plan/schedule.hpp"
#include "tessera/plan/simulate.hpp"

namespace tessera::plan::roles_test {

constexpr std::size_t elements = 96;

CollectiveSpec activation(CollectiveKind kind) {
  return {.name = "u.x", .kind = kind, .type = DType::fp32, .elements = elements, .backward = false};
}
CollectiveSpec gradient(CollectiveKind kind) {
  return {.name = "u.dx", .kind = kind, .type = DType::fp32, .elements = elements, .forward = false};
}

// Both micro-batches of a schedule go forward before either goes back (GPipe: Huang et al. 2019).
Program schedule() { return program("f0 f1 f0 f1 b1 b0 b1 b0"); }

// Micro-batches of which so many go forward before the first goes back.
Program alternating(std::size_t micro_batches, std::size_t ahead) {
  using enum WindowKind;
  Program result;
  for (std::size_t step = 0; step < micro_batches + ahead; ++step) {
    if (step < micro_batches) result.micro_batch.insert(result.micro_batch.end(), {{0, forward}, {1, forward}});
    if (step >= ahead) result.micro_batch.insert(result.micro_batch.end(), {{1, backward}, {0, backward}});
  }
  return result;
}

Plan plan_of(Model model, PlanOptions options, std::size_t role) {
  options.role = role;
  options.role_units = 8;
  return compile(model, options);
}

std::vector<RankRole> two_stages(const PlanOptions& options, const Program& of_first = schedule(),
                                 const Program& of_second = schedule(), std::size_t buffers = 2) {
  Model first = chain_model(2);
  Model second = chain_model(2);
  first.program = of_first, second.program = of_second;
  first.units[1].collectives = {activation(CollectiveKind::send), gradient(CollectiveKind::receive)};
  second.units[0].collectives = {activation(CollectiveKind::receive), gradient(CollectiveKind::send)};
  for (CollectiveSpec& each : first.units[1].collectives) each.buffers = buffers;
  for (CollectiveSpec& each : second.units[0].collectives) each.buffers = buffers;
  return {{"first", plan_of(first, options, 0)}, {"second", plan_of(second, options, 1)}};
}

const PlanOptions settings[] = {
    {.mesh = MeshShape{{Axis::pipeline, 2}}},
    {.mesh = MeshShape{{Axis::shard, 3}, {Axis::pipeline, 2}}, .micro_batches = 2},
    {.strategy = Strategy::hsdp, .mesh = MeshShape{{Axis::replicate, 2}, {Axis::pipeline, 2}, {Axis::shard, 2}}},
    {.strategy = Strategy::zero1,
     .precision = bf16_mixed,
     .mesh = MeshShape{{Axis::pipeline, 2}, {Axis::shard, 2}},
     .micro_batches = 3}};
const PlanOptions two_and_two = {.mesh = MeshShape{{Axis::pipeline, 2}, {Axis::shard, 2}}};

bool is_refused(const std::vector<RankRole>& roles) {
  try {
    return !verify(roles).ok();
  } catch (const UsageError&) {
    return true;
  }
}

TEST_CASE("two_stages_with_two_micro_batches_are_proved_together") {
  for (const PlanOptions& options : settings) {
    const std::vector<RankRole> roles = two_stages(options);
    const Verification verification = verify(roles);
    check_sound(verification);
    for (const RankRole& role : roles) CHECK(verify(role.plan).ok());
    CHECK(verification.operations > verify(roles[0].plan).operations);
  }
}

TEST_CASE("the_table_of_roles_is_hashed_with_all_plans") {
  const std::vector<RankRole> roles = two_stages(two_and_two);
  CHECK(hash(roles) == hash(two_stages(two_and_two)));
  std::vector<RankRole> renamed = roles;
  renamed[1].name = "last";
  CHECK(hash(renamed) != hash(roles));
  std::vector<RankRole> other = roles;
  other[1].plan.options.prefetch = 3;
  CHECK(hash(other) != hash(roles));
}

// Every message is damaged on one side: missing, the other way round, longer, on the other side of its window, to the
// other neighbour, or of another place in memory.
TEST_CASE("a_message_without_its_counterpart_is_caught_wherever_it_is") {
  using Damage = std::function<void(Plan&, EventPoint)>;
  const Damage damages[] = {
      [](Plan& plan, EventPoint point) { erase(plan, point); },
      [&](Plan& plan, EventPoint point) {
        Operation& message = operation_at(plan, point);
        const bool sends = message.collective_kind == CollectiveKind::send;
        message.collective_kind = sends ? CollectiveKind::receive : CollectiveKind::send;
        message.accesses.front().mode = sends ? AccessMode::write : AccessMode::read;
      },
      [](Plan& plan, EventPoint point) {
        const Operation& message = plan.at(point);
        plan.units[message.unit].collectives[message.collective].elements += 1;
      },
      [](Plan& plan, EventPoint point) {  // before the window that writes it, or behind the one that reads it
        const auto& operations = plan.segments[point.segment].operations;
        const bool sends = plan.at(point).collective_kind == CollectiveKind::send;
        const Range range = plan.at(point).accesses.front().range;
        const auto has_it = [&](const Operation& operation) {
          return operation.kind == OperationKind::window &&
                 std::any_of(operation.accesses.begin(), operation.accesses.end(),
                             [&](const Access& access) { return access.range == range; });
        };
        std::size_t window = point.operation;
        do {
          window += sends ? std::size_t{0} - 1 : 1;
        } while (!has_it(operations[window]));
        sends ? move_up(plan, point.segment, point.operation, window)
              : move_up(plan, point.segment, window, point.operation);
      },
      [&](Plan& plan, EventPoint point) {
        WindowKind& window = operation_at(plan, point).window;
        window = window == WindowKind::forward ? WindowKind::backward : WindowKind::forward;
      },
      [&](Plan& plan, EventPoint point) { operation_at(plan, point).accesses.front().range.size = Bytes(4); },
      [&](Plan& plan, EventPoint point) {  // into, or out of, the other buffer, or one that is not there
        const Operation& message = plan.at(point);
        const Bytes half(plan.buffers[message.accesses.front().range.buffer].size.count() / 2);
        Bytes& offset = operation_at(plan, point).accesses.front().range.offset;
        offset = offset == Bytes(0) ? half : Bytes(0);
      },
      [](Plan& plan, EventPoint point) { plan.units[plan.at(point).unit].collectives[0].name = "u.y"; }};
  std::size_t caught = 0;
  for (const PlanOptions& options : settings) {
    const std::vector<RankRole> roles = two_stages(options);
    for (std::size_t role = 0; role < 2; ++role) {
      const Plan& plan = roles[role].plan;
      each_operation(plan, [&](EventPoint point, const Operation& operation) {
        if (!operation.passes_message()) return;
        for (const Damage& damage : damages) {
          std::vector<RankRole> mutant = roles;
          damage(mutant[role].plan, point);
          CHECK_MESSAGE(is_refused(mutant), fmt::format("damage {} of {} of {}", &damage - damages,
                                                        describe(plan, point), roles[role].name));
          ++caught;
        }
      });
    }
  }
  CHECK(caught > 200);
}

// The first stage wants a gradient of the second one before it has sent what that waits for; and one of two stages that
// go at their own pace finds all buffers on their way.
TEST_CASE("roles_that_wait_for_each_other_are_named") {
  const Program at_once = alternating(2, 0), first_all = alternating(6, 6);
  CHECK(verify(two_stages(two_and_two, schedule(), at_once)).ok());
  for (const auto& [first, second, buffers] :
       {std::tuple(at_once, schedule(), std::size_t{2}), std::tuple(first_all, alternating(6, 0), std::size_t{1})}) {
    const Verification verification = verify(two_stages(two_and_two, first, second, buffers));
    REQUIRE_FALSE(verification.ok());
    CHECK(contains(verification.violations.front().text, "wait for each other"));
  }
  CHECK(verify(two_stages(two_and_two, first_all, alternating(6, 0), 2)).ok());
}

using Change = std::function<void(std::size_t stage, Model& model)>;

// Every part of a model is three units, the outer two of which pass messages on.
std::vector<RankRole> stages_of(ScheduleKind kind, const ScheduleShape& shape, const Change& change = nullptr) {
  constexpr std::size_t buffers = 2;
  const Schedule lists = schedule(kind, shape);
  const std::size_t parts = shape.stages * shape.chunks;
  std::vector<RankRole> result;
  for (std::size_t stage = 0; stage < shape.stages; ++stage) {
    Model model = chain_model(3 * shape.chunks);
    model.program = {};
    for (std::size_t chunk = 0; chunk < shape.chunks; ++chunk) {
      const std::size_t part = chunk * shape.stages + stage;
      const auto link = [&](std::size_t unit, std::size_t number, CollectiveKind there, CollectiveKind back) {
        std::vector<CollectiveSpec>& messages = model.units[3 * chunk + unit].collectives;
        messages = {activation(there), gradient(back)};
        for (CollectiveSpec& each : messages) each.name += fmt::format("{}", number), each.buffers = buffers;
      };
      if (part > 0) link(0, part, CollectiveKind::receive, CollectiveKind::send);
      if (part + 1 < parts) link(2, part + 1, CollectiveKind::send, CollectiveKind::receive);
    }
    for (const ScheduledPass& pass : lists[stage]) {
      const std::size_t first = 3 * pass.chunk;
      std::vector<WindowUse>& windows = model.program.micro_batch;
      const bool is_rest = kind == ScheduleKind::zb_h1 && pass.kind == WindowKind::backward;
      const WindowKind link = pass.kind == WindowKind::forward ? pass.kind : WindowKind::backward;
      const bool back = link == WindowKind::backward;
      if (!is_rest) windows.push_back({first + (back ? 2 : 0), link});
      windows.push_back({first + 1, pass.kind});
      if (!is_rest) windows.push_back({first + (back ? 0 : 2), link});
    }
    if (change) change(stage, model);
    result.push_back(
        {fmt::format("stage {}", stage), plan_of(model, {.mesh = MeshShape{{Axis::pipeline, shape.stages}}}, stage)});
  }
  return result;
}

// Units of the first role and the last are one.
std::vector<RankRole> tied_stages(std::size_t stages, const std::vector<std::size_t>& units) {
  return stages_of(ScheduleKind::one_f_one_b, {stages, stages}, [&](std::size_t stage, Model& model) {
    for (const std::size_t unit : units) {
      model.units[unit].is_tied_to = stage == 0;
      model.units[unit].tied = stage + 1 == stages;
    }
  });
}

std::vector<EventPoint> sums_of_tied(const Plan& plan) {
  std::vector<EventPoint> result;
  each_operation(plan, [&](EventPoint point, const Operation& operation) {
    if (operation.kind == OperationKind::sum_tied) result.push_back(point);
  });
  return result;
}

TEST_CASE("gradients_of_tied_units_are_summed_once_in_both_roles") {
  using Damage = std::function<void(Plan&, EventPoint)>;
  const Damage damages[] = {
      [](Plan& plan, EventPoint point) { erase(plan, point); },
      [&](Plan& plan, EventPoint point) {  // a second time
        const EventPoint again = insert_nothing(plan, point, StreamId::reduce);
        operation_at(plan, again) = plan.at({point.segment, point.operation + 1});
      },
      [&](Plan& plan, EventPoint point) { operation_at(plan, point).accesses.front().range.size = Bytes(4); },
      [&](Plan& plan, EventPoint point) { operation_at(plan, point).group = {}; },
      [](Plan& plan, EventPoint point) { plan.units[plan.at(point).unit].name = "another"; },
      [](Plan& plan, EventPoint point) {  // before the unit's own sum
        const std::size_t unit = plan.at(point).unit;
        std::size_t own = point.operation;
        do {
          own = previous_on_stream(plan, point.segment, own);
        } while (plan.segments[point.segment].operations.at(own).unit != unit);
        move_up(plan, point.segment, point.operation, own);
      }};
  for (const std::size_t stages : {std::size_t{2}, std::size_t{3}}) {
    const std::vector<RankRole> roles = tied_stages(stages, {1, 2});
    check_sound(verify(roles));
    for (const std::size_t role : {std::size_t{0}, stages - 1}) {
      const std::vector<EventPoint> sums = sums_of_tied(roles[role].plan);
      REQUIRE(sums.size() == 2);
      for (const EventPoint point : sums) {
        for (const Damage& damage : damages) {
          std::vector<RankRole> mutant = roles;
          damage(mutant[role].plan, point);
          CHECK_MESSAGE(is_refused(mutant), fmt::format("damage {} of {} in role {} of {}", &damage - damages,
                                                        describe(roles[role].plan, point), role, stages));
        }
      }
    }
    // The two of one role by turns, which the other role's wait for.
    std::vector<RankRole> swapped = roles;
    const std::vector<EventPoint> sums = sums_of_tied(roles.front().plan);
    move_up(swapped.front().plan, sums[1].segment, sums[1].operation, sums[0].operation);
    CHECK(is_refused(swapped));
    // They take time, of both roles alike.
    const auto step = [&](double seconds) {
      const Durations durations{.on_stream = [&](const Operation& operation) {
        return operation.kind == OperationKind::sum_tied ? seconds : 0.0;
      }};
      return simulate(roles, std::vector<Durations>(roles.size(), durations)).back().step_seconds;
    };
    CHECK(step(3) == doctest::Approx(6));
  }
  CHECK(sums_of_tied(tied_stages(3, {1})[1].plan).empty());
  // Twice in the norm, or in none.
  for (const bool tied : {false, true}) {
    std::vector<RankRole> roles = tied_stages(3, {1});
    for (RankRole* const role : {&roles.front(), &roles.back()}) {
      role->plan.units[1].tied = tied;
      role->plan.units[1].is_tied_to = !tied;
    }
    CHECK_THROWS_WITH_AS(verify(roles), doctest::Contains("is of two roles, and the other half"), UsageError);
  }
}

struct Scheduled {
  ScheduleKind kind;
  ScheduleShape shape;
};
constexpr Scheduled all_scheduled[] = {{ScheduleKind::gpipe, {3, 6}},          {ScheduleKind::one_f_one_b, {2, 5}},
                                       {ScheduleKind::one_f_one_b, {4, 8}},    {ScheduleKind::interleaved, {2, 6, 2}},
                                       {ScheduleKind::interleaved, {3, 6, 2}}, {ScheduleKind::zb_h1, {3, 7}},
                                       {ScheduleKind::zb_h1, {4, 8}}};

// Every schedule's plans are proved, and a step takes what its list says.
TEST_CASE("bubbles_of_plans_are_those_of_schedules") {
  for (const auto& [kind, shape] : all_scheduled) {
    const std::vector<RankRole> roles = stages_of(kind, shape);
    check_sound(verify(roles));
    const double rest = kind == ScheduleKind::zb_h1 ? 0 : 1;
    const Durations durations{.on_stream = [&](const Operation& operation) {
      if (operation.kind != OperationKind::window || operation.unit % 3 != 1) return 0.0;
      return operation.window == WindowKind::backward ? 1 + rest : 1.0;
    }};
    const std::vector<Simulation> found = simulate(roles, std::vector<Durations>(roles.size(), durations));
    const ScheduleTimes expected = times(schedule(kind, shape), shape);
    for (std::size_t stage = 0; stage < roles.size(); ++stage) {
      CHECK(found[stage].step_seconds == doctest::Approx(expected.step));
      CHECK(found[stage].step_seconds - found[stage].computing == doctest::Approx(expected.idle[stage]));
    }
  }
}

// Each send and receive of each stage changes places with the next one of its stream.
TEST_CASE("messages_that_change_places_are_caught") {
  std::size_t caught = 0;
  for (const auto& [kind, shape] : all_scheduled) {
    const std::vector<RankRole> roles = stages_of(kind, shape);
    for (std::size_t role = 0; role < roles.size(); ++role) {
      const auto only = roles[role].plan.find(SegmentKind::only).value();
      const std::vector<Operation>& operations = roles[role].plan.segments[only].operations;
      for (std::size_t o = 0; o < operations.size(); ++o) {
        const std::size_t earlier = previous_on_stream(roles[role].plan, only, o);
        if (!operations[o].passes_message() || earlier == no_operation) continue;
        std::vector<RankRole> mutant = roles;
        std::vector<Operation>& changed = mutant[role].plan.segments[only].operations;
        std::swap(changed[o].accesses, changed[earlier].accesses);
        std::swap(changed[o].unit, changed[earlier].unit);
        std::swap(changed[o].collective, changed[earlier].collective);
        if (changed[o].accesses.front().range == changed[earlier].accesses.front().range) continue;
        CHECK_MESSAGE(is_refused(mutant), describe(roles[role].plan, EventPoint{only, o}));
        ++caught;
      }
    }
  }
  CHECK(caught > 100);
}

TEST_CASE("a_message_that_nobody_is_there_for_is_refused") {
  std::vector<RankRole> roles = two_stages(two_and_two);
  roles.pop_back();
  CHECK(contains(usage_error([&] { verify(roles); }),
                 "receive u.dx in the backward window of role first: role first has no other side of it"));
  roles = two_stages(two_and_two);
  roles[1].name = "first";
  CHECK(contains(usage_error([&] { verify(roles); }), "two roles have the name \"first\""));
  Model model = chain_model(2);
  model.units[1].collectives = {activation(CollectiveKind::send)};
  CHECK(contains(refusal(model, {.ranks = 2}), "this model has none"));
  model.units[1].recompute = true;
  CHECK(contains(usage_error([&] { plan_of(model, two_and_two, 0); }), "would come again"));
  CHECK(contains(usage_error([&] { plan_of(chain_model(2), two_and_two, 2); }), "role 2 of a mesh of 2 roles"));
}

}  // namespace tessera::plan::roles_test
