// Two stages of a pipeline: two roles of ranks, each with a plan, that pass activations and gradients to each other.
#include "tessera/plan/roles.hpp"

#include <doctest/doctest.h>

#include <fmt/format.h>

#include <functional>
#include <string>
#include <vector>

#include "errors.hpp"
#include "models.hpp"
#include "plan_edits.hpp"

namespace tessera::plan {

namespace roles_test {

constexpr std::size_t elements = 96;

CollectiveSpec activation(CollectiveKind kind) {
  return {.name = "u.x", .kind = kind, .type = DType::fp32, .elements = elements, .backward = false};
}
CollectiveSpec gradient(CollectiveKind kind) {
  return {.name = "u.dx", .kind = kind, .type = DType::fp32, .elements = elements, .forward = false};
}

// Both micro-batches of a schedule go forward before either goes back (GPipe: Huang et al. 2019).
Program schedule() {
  using enum WindowKind;
  return {{{0, forward},
           {1, forward},
           {0, forward},
           {1, forward},
           {1, backward},
           {0, backward},
           {1, backward},
           {0, backward}},
          {}};
}

Plan plan_of(Model model, PlanOptions options, std::size_t role) {
  options.role = role;
  return compile(input_of(model, options));
}

std::vector<RankRole> two_stages(const PlanOptions& options, const Program& of_second = schedule()) {
  Model first = chain_model(2);
  Model second = chain_model(2);
  first.program = schedule(), second.program = of_second;
  first.units[1].collectives = {activation(CollectiveKind::send), gradient(CollectiveKind::receive)};
  second.units[0].collectives = {activation(CollectiveKind::receive), gradient(CollectiveKind::send)};
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
    CHECK_MESSAGE(verification.ok(), (verification.ok() ? "" : verification.violations.front().text));
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

// Every message is damaged on one side: missing, the other way round, longer, early, to the other neighbour, or of
// another place in memory.
TEST_CASE("a_message_without_its_counterpart_is_caught_wherever_it_is") {
  using Damage = std::function<void(Plan&, EventPoint)>;
  const auto at = [](Plan& plan, EventPoint point) -> Operation& {
    return plan.segments[point.segment].operations[point.operation];
  };
  const Damage damages[] = {
      [](Plan& plan, EventPoint point) { erase(plan, point); },
      [&](Plan& plan, EventPoint point) {
        Operation& message = at(plan, point);
        const bool sends = message.collective_kind == CollectiveKind::send;
        message.collective_kind = sends ? CollectiveKind::receive : CollectiveKind::send;
        message.accesses.front().mode = sends ? AccessMode::write : AccessMode::read;
      },
      [](Plan& plan, EventPoint point) {
        const Operation& message = plan.at(point);
        plan.units[message.unit].collectives[message.collective].elements += 1;
      },
      [](Plan& plan, EventPoint point) {
        move_up(plan, point.segment, point.operation, previous_on_stream(plan, point.segment, point.operation));
      },
      [&](Plan& plan, EventPoint point) {
        WindowKind& window = at(plan, point).window;
        window = window == WindowKind::forward ? WindowKind::backward : WindowKind::forward;
      },
      [&](Plan& plan, EventPoint point) { at(plan, point).accesses.front().range.size = Bytes(4); },
      [](Plan& plan, EventPoint point) { plan.units[plan.at(point).unit].collectives[0].name = "u.y"; }};
  std::size_t caught = 0;
  for (const PlanOptions& options : settings) {
    const std::vector<RankRole> roles = two_stages(options);
    for (std::size_t role = 0; role < 2; ++role) {
      const Plan& plan = roles[role].plan;
      for (std::size_t s = 0; s < plan.segments.size(); ++s) {
        for (std::size_t o = 0; o < plan.segments[s].operations.size(); ++o) {
          if (!plan.segments[s].operations[o].passes_message()) continue;
          for (const Damage& damage : damages) {
            std::vector<RankRole> mutant = roles;
            damage(mutant[role].plan, {s, o});
            CHECK_MESSAGE(is_refused(mutant), fmt::format("damage {} of {} of {}", &damage - damages,
                                                          describe(plan, EventPoint{s, o}), roles[role].name));
            ++caught;
          }
        }
      }
    }
  }
  CHECK(caught > 200);
}

// The second stage goes back before the first one has sent all that it sends.
TEST_CASE("roles_that_wait_for_each_other_are_named") {
  using enum WindowKind;
  const Program back_at_once = {{{0, forward},
                                 {1, forward},
                                 {1, backward},
                                 {0, backward},
                                 {0, forward},
                                 {1, forward},
                                 {1, backward},
                                 {0, backward}},
                                {}};
  const Verification verification = verify(two_stages(two_and_two, back_at_once));
  REQUIRE_FALSE(verification.ok());
  CHECK(contains(verification.violations.front().text, "wait for each other"));
}

TEST_CASE("a_message_that_nobody_is_there_for_is_refused") {
  std::vector<RankRole> roles = two_stages(two_and_two);
  roles.pop_back();
  CHECK(contains(usage_error([&] { verify(roles); }),
                 "send u.x in the forward window of role first: there is no role behind it"));
  roles = two_stages(two_and_two);
  roles[1].name = "first";
  CHECK(contains(usage_error([&] { verify(roles); }), "two roles have the name \"first\""));
  Model model = chain_model(2);
  model.units[1].collectives = {activation(CollectiveKind::send)};
  CHECK(contains(usage_error([&] { compile(input_of(model, {.ranks = 2})); }), "this model has none"));
  model.units[1].recompute = true;
  CHECK(contains(usage_error([&] { plan_of(model, two_and_two, 0); }), "would come again"));
  CHECK(contains(usage_error([&] { plan_of(chain_model(2), two_and_two, 2); }), "role 2 of a mesh of 2 roles"));
}

}  // namespace roles_test

}  // namespace tessera::plan
