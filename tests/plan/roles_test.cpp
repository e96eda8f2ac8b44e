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

MessageSpec activation(const std::string& peer, bool sends) {
  return {.name = "activation", .peer = peer, .elements = elements, .sends = sends};
}
MessageSpec gradient(const std::string& peer, bool sends) {
  return {.name = "gradient", .peer = peer, .elements = elements, .window = WindowKind::backward, .sends = sends};
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

std::vector<RankRole> two_stages(const PlanOptions& options) {
  Model first = chain_model(2);
  Model second = chain_model(2);
  first.program = second.program = schedule();
  first.units[1].messages = {activation("second", true), gradient("second", false)};
  second.units[0].messages = {activation("first", false), gradient("first", true)};
  return {{"first", compile(input_of(first, options))}, {"second", compile(input_of(second, options))}};
}

const PlanOptions settings[] = {{.ranks = 1},
                                {.ranks = 3, .micro_batches = 2},
                                {.strategy = Strategy::hsdp, .ranks = 4, .replicas = 2},
                                {.strategy = Strategy::zero1, .precision = bf16_mixed, .ranks = 2, .micro_batches = 3}};

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
  const std::vector<RankRole> roles = two_stages({.ranks = 2});
  CHECK(hash(roles) == hash(two_stages({.ranks = 2})));
  std::vector<RankRole> renamed = roles;
  renamed[1].name = "last";
  CHECK(hash(renamed) != hash(roles));
  std::vector<RankRole> other = roles;
  other[1].plan.options.prefetch = 3;
  CHECK(hash(other) != hash(roles));
}

// Every message is damaged on one side: missing, the other way round, longer, or sent before the window has written it.
TEST_CASE("a_message_without_its_counterpart_is_caught_wherever_it_is") {
  const auto erased = [](Plan& plan, EventPoint point) { erase(plan, point); };
  const auto turned = [](Plan& plan, EventPoint point) {
    Operation& message = plan.segments[point.segment].operations[point.operation];
    message.kind = message.kind == OperationKind::send ? OperationKind::receive : OperationKind::send;
  };
  const auto longer = [](Plan& plan, EventPoint point) { plan.units[plan.at(point).unit].messages[0].elements += 1; };
  const auto early = [](Plan& plan, EventPoint point) {  // a receive may come earlier
    if (plan.at(point).kind == OperationKind::receive) return erase(plan, point);
    move_up(plan, point.segment, point.operation, previous_on_stream(plan, point.segment, point.operation));
  };
  std::size_t caught = 0;
  for (const PlanOptions& options : settings) {
    const std::vector<RankRole> roles = two_stages(options);
    for (std::size_t role = 0; role < 2; ++role) {
      const Plan& plan = roles[role].plan;
      for (std::size_t s = 0; s < plan.segments.size(); ++s) {
        for (std::size_t o = 0; o < plan.segments[s].operations.size(); ++o) {
          if (!is_message(plan.segments[s].operations[o].kind)) continue;
          for (const std::function<void(Plan&, EventPoint)>& damage :
               {std::function<void(Plan&, EventPoint)>(erased), {turned}, {longer}, {early}}) {
            std::vector<RankRole> mutant = roles;
            damage(mutant[role].plan, {s, o});
            CHECK_MESSAGE(!verify(mutant).ok(),
                          fmt::format("{} of {}", describe(plan, EventPoint{s, o}), roles[role].name));
            ++caught;
          }
        }
      }
    }
  }
  CHECK(caught > 100);
}

// The second stage wants the gradient's send before the activation came: each waits for the other.
TEST_CASE("roles_that_wait_for_each_other_are_named") {
  std::vector<RankRole> roles = two_stages({.ranks = 2});
  Plan& plan = roles[1].plan;
  const std::size_t segment = *plan.find(SegmentKind::only);
  const auto& operations = plan.segments[segment].operations;
  std::size_t receive = 0, send = 0;
  for (std::size_t o = operations.size(); o-- > 0;) {
    if (operations[o].kind == OperationKind::receive) receive = o;
    if (operations[o].kind == OperationKind::send) send = o;
  }
  move_up(plan, segment, send, receive);
  const Verification verification = verify(roles);
  REQUIRE_FALSE(verification.ok());
  bool waits = false;
  for (const Violation& violation : verification.violations)
    waits = waits || contains(violation.text, "wait for each other");
  CHECK(waits);
}

TEST_CASE("a_message_for_a_role_that_there_is_not_is_refused") {
  std::vector<RankRole> roles = two_stages({.ranks = 2});
  roles.pop_back();
  CHECK(contains(usage_error([&] { verify(roles); }), "message \"activation\" of role first is for role \"second\""));
  roles = two_stages({.ranks = 2});
  roles[1].name = "first";
  CHECK(contains(usage_error([&] { verify(roles); }), "two roles have the name \"first\""));
}

}  // namespace roles_test

}  // namespace tessera::plan
