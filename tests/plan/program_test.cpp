// Programs: the default chain, and what check() refuses, with the window named.
#include "tessera/plan/program.hpp"

#include <doctest/doctest.h>

#include "errors.hpp"
#include "models.hpp"

namespace tessera::plan {

using enum WindowKind;

TEST_CASE("a_chain_runs_forward_in_order_and_backward_in_reverse") {
  const Program program = Program::chain(3);
  CHECK(program.micro_batch ==
        std::vector<WindowUse>{{0, forward}, {1, forward}, {2, forward}, {2, backward}, {1, backward}, {0, backward}});
  CHECK(program.evaluation == std::vector<WindowUse>{{0, evaluate}, {1, evaluate}, {2, evaluate}});
}

TEST_CASE("check_accepts_every_program_of_the_matrix") {
  for (const Model& model : all_models()) {
    INFO(model.name);
    CHECK_NOTHROW(check(model.program, std::vector<bool>(model.units.size(), true)));
  }
}

TEST_CASE("check_names_a_unit_that_does_not_exist") {
  const Program program{{{0, forward}, {1, forward}}, {}};
  CHECK(usage_error([&] { check(program, std::vector<bool>(1, true)); }) ==
        "program: window 1 (forward) names unit 1, but the model has 1 units");
  Program evaluation = Program::chain(1);
  evaluation.evaluation.push_back({7, evaluate});
  CHECK(contains(usage_error([&] { check(evaluation, {true}); }), "window 1 (evaluate) names unit 7"));
}

TEST_CASE("check_names_a_unit_without_backward_window") {
  const Program program{{{0, forward}, {1, forward}, {0, backward}}, {}};
  CHECK(usage_error([&] { check(program, std::vector<bool>(2, true)); }) == "program: unit 1 has no backward window");
}

TEST_CASE("check_refuses_backward_and_recompute_before_forward") {
  CHECK(contains(usage_error([] {
                   check({{{0, backward}}, {}}, {true});
                 }),
                 "window 0 (backward) of unit 0 comes before any forward"));
  CHECK(contains(usage_error([] {
                   check({{{0, recompute}, {0, forward}, {0, backward}}, {}}, {true});
                 }),
                 "window 0 (recompute) of unit 0 comes before any forward"));
}

TEST_CASE("check_refuses_kinds_in_the_wrong_list") {
  CHECK(contains(usage_error([] { check({{{0, forward}, {0, evaluate}, {0, backward}}, {}}, {true}); }), "window 1"));
  CHECK(contains(usage_error([] {
                   check({{{0, forward}, {0, backward}}, {{0, forward}}}, {true});
                 }),
                 "window 0 of the evaluation is a forward window"));
}

TEST_CASE("every_window_kind_has_a_name") {
  CHECK(to_string(forward) == "forward");
  CHECK(to_string(backward) == "backward");
  CHECK(to_string(recompute) == "recompute");
  CHECK(to_string(evaluate) == "evaluate");
}

}  // namespace tessera::plan
