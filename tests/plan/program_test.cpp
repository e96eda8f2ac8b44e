// Programs: the default chain, and what check() refuses, with the window named.
#include "tessera/plan/program.hpp"

#include <doctest/doctest.h>

#include "errors.hpp"
#include "models.hpp"

namespace tessera::plan {

using enum WindowKind;

namespace program_test {

// All units have parameters, none of them frozen.
std::vector<std::size_t> trained_by(const std::vector<Program>& programs, std::size_t units) {
  return trainers(programs, std::vector<Trainable>(units, {.parameters = true, .trained = true}));
}
std::vector<std::size_t> trained_by(const Program& program, std::size_t units) {
  return trained_by(std::vector{program}, units);
}

}  // namespace program_test
using namespace program_test;

TEST_CASE("a_chain_runs_forward_in_order_and_backward_in_reverse") {
  const Program program = Program::chain(3);
  CHECK(program.micro_batch ==
        std::vector<WindowUse>{{0, forward}, {1, forward}, {2, forward}, {2, backward}, {1, backward}, {0, backward}});
  CHECK(program.evaluation == std::vector<WindowUse>{{0, evaluate}, {1, evaluate}, {2, evaluate}});
}

TEST_CASE("check_accepts_every_program_of_the_matrix") {
  for (const Model& model : all_models()) {
    INFO(model.name);
    CHECK_NOTHROW(trained_by(input_of(model, {}).programs, model.units.size()));
  }
}

TEST_CASE("check_names_a_unit_that_does_not_exist") {
  const Program program{{{0, forward}, {1, forward}}, {}};
  CHECK(usage_error([&] { trained_by(program, 1); }) ==
        "program: window 1 (forward) names unit 1, but the model has 1 units");
  Program evaluation = Program::chain(1);
  evaluation.evaluation.push_back({7, evaluate});
  CHECK(contains(usage_error([&] { trained_by(evaluation, 1); }), "window 1 (evaluate) names unit 7"));
}

TEST_CASE("check_names_a_unit_without_backward_window") {
  const Program program{{{0, forward}, {1, forward}, {0, backward}}, {}};
  CHECK(usage_error([&] { trained_by(program, 2); }) ==
        "program: unit 1 has no backward window: give it one, or freeze its parameters");
}

TEST_CASE("units_that_recompute_do_so_right_before_each_backward_window") {
  const std::vector<bool> all(2, true);
  CHECK(recomputing(Program::chain(2), {false, true}).micro_batch ==
        std::vector<WindowUse>{{0, forward}, {1, forward}, {1, recompute}, {1, backward}, {0, backward}});
  CHECK(recomputing(Program::chain(2), {false, false}).micro_batch == Program::chain(2).micro_batch);
  CHECK(recomputing(Program::chain(2), all).evaluation == Program::chain(2).evaluation);
  const Program tied{{{0, forward}, {1, forward}, {0, forward}, {0, backward}, {1, backward}, {0, backward}}, {}};
  const Program once = recomputing(tied, {true, false});
  CHECK(once.micro_batch == std::vector<WindowUse>{{0, forward},
                                                   {1, forward},
                                                   {0, forward},
                                                   {0, recompute},
                                                   {0, backward},
                                                   {1, backward},
                                                   {0, recompute},
                                                   {0, backward}});
  CHECK(recomputing(once, {true, false}).micro_batch == once.micro_batch);
}

TEST_CASE("what_was_open_inside_a_window_is_so_again_where_its_unit_recomputes") {
  const Program nested{
      {{0, forward}, {1, forward}, {0, forward, true}, {0, backward}, {1, backward}, {0, backward, true}}, {}};
  CHECK(recomputing(nested, {true, false}).micro_batch == std::vector<WindowUse>{{0, forward},
                                                                                 {1, forward},
                                                                                 {0, forward, true},
                                                                                 {0, recompute},
                                                                                 {1, recompute},
                                                                                 {0, recompute, true},
                                                                                 {0, backward},
                                                                                 {1, backward},
                                                                                 {0, backward, true}});
  // A recorded pass has it so: the outer window goes on between the two inner ones.
  const std::vector<WindowUse> inner = {{0, forward},   {1, forward},        {0, forward, true}, {0, backward},
                                        {1, recompute}, {0, backward, true}, {1, backward},      {0, backward, true}};
  CHECK(recomputing(nested, {false, true}).micro_batch == inner);
  CHECK(recomputing({inner, {}}, {false, true}).micro_batch == inner);
  const Program both = recomputing(nested, {true, true});
  CHECK(both.micro_batch.size() == 11);
  CHECK(recomputing(both, {true, true}).micro_batch == both.micro_batch);
  const Program backward_inside{{{1, forward}, {0, forward}, {1, backward}, {0, forward, true}, {0, backward}}, {}};
  CHECK(contains(usage_error([&] {
                   recomputing(backward_inside, {true, false});
                 }),
                 "a backward window of unit 1 is open inside its forward window"));
}

TEST_CASE("check_refuses_backward_and_recompute_before_forward") {
  CHECK(contains(usage_error([] {
                   trained_by({{{0, backward}}, {}}, 1);
                 }),
                 "window 0 (backward) of unit 0 comes before any forward"));
  CHECK(contains(usage_error([] {
                   trained_by({{{0, recompute}, {0, forward}, {0, backward}}, {}}, 1);
                 }),
                 "window 0 (recompute) of unit 0 comes before any forward"));
}

TEST_CASE("check_refuses_kinds_in_the_wrong_list") {
  CHECK(contains(usage_error([] { trained_by({{{0, forward}, {0, evaluate}, {0, backward}}, {}}, 1); }), "window 1"));
  CHECK(contains(usage_error([] {
                   trained_by({{{0, forward}, {0, backward}}, {{0, forward}}}, 1);
                 }),
                 "window 0 of the evaluation is a forward window"));
}

TEST_CASE("windows_close_where_none_resumes_them") {
  CHECK(closes({}) == std::vector<bool>{});
  CHECK(closes({{0, forward}, {1, forward}, {0, forward, true}, {1, backward}}) ==
        std::vector<bool>{false, true, true, true});
  CHECK(closes({{0, forward}, {1, forward}, {0, forward, true}, {1, forward}, {0, forward, true}, {0, backward}}) ==
        std::vector<bool>{false, true, false, true, true, true});
}

TEST_CASE("windows_that_are_not_nested_in_each_other_are_refused") {
  const auto error = [](const std::vector<WindowUse>& windows) {
    return usage_error([&] { trained_by({windows, {}}, 2); });
  };
  CHECK(contains(error({{0, forward}, {1, forward}, {0, backward, true}}),
                 "program: window 2 (backward) of unit 0 resumes a window that is not open there"));
  CHECK(
      contains(error({{0, forward}, {1, forward}, {0, forward, true}, {1, forward, true}}),
               "window 2 (forward) of unit 0 resumes a window that is not open there, or inside which another one is"));
  CHECK(contains(error({{0, forward, true}}), "window 0 (forward) of unit 0 resumes"));
  CHECK(contains(error({{0, forward}, {0, forward, true}}), "resumes a window inside which none was open"));
  CHECK(contains(usage_error([] {
                   trained_by({Program::chain(2).micro_batch, {{0, evaluate}, {1, evaluate, true}}}, 2);
                 }),
                 "window 1 (evaluate) of unit 1 resumes"));
}

// Unit 0 is a generator, unit 1 a discriminator.
namespace program_test {

Program discriminator() {
  Program program{{{0, forward}, {1, forward}, {1, backward}}, {}};
  program.name = "discriminator";
  return program;
}
Program generator() {
  Program program{{{0, forward}, {1, forward}, {1, backward}, {0, backward}}, {}};
  program.name = "generator";
  program.trains = std::vector<std::size_t>{0};
  return program;
}

}  // namespace program_test

TEST_CASE("each_unit_is_trained_by_the_program_that_says_so") {
  CHECK(trained_by({discriminator(), generator()}, 2) == std::vector<std::size_t>{1, 0});
  const std::vector<Trainable> units = {{.parameters = true, .trained = false}, {.parameters = true, .trained = true}};
  CHECK(trainers(std::vector{discriminator()}, units) == std::vector<std::size_t>{no_program, 0});
}

TEST_CASE("a_unit_without_parameters_belongs_to_the_first_program_that_comes_back_to_it") {
  const std::vector<Trainable> units = {{.parameters = true, .trained = true}, {.parameters = false, .trained = true}};
  Program generator = program_test::generator();
  generator.trains = std::nullopt;
  CHECK(trainers(std::vector{discriminator(), generator}, units) == std::vector<std::size_t>{1, 0});
}

TEST_CASE("programs_that_do_not_go_together_are_refused_by_name") {
  Program all = generator();
  all.trains = std::nullopt;
  CHECK(contains(usage_error([&] {
                   trained_by({discriminator(), all}, 2);
                 }),
                 "unit 1 is trained by two programs, \"discriminator\" and \"generator\""));
  CHECK(contains(usage_error([&] { trained_by({discriminator()}, 3); }), "unit 0 has no backward window"));
  CHECK(contains(usage_error([&] { trained_by({discriminator(), generator()}, 3); }), "no program trains unit 2"));
  CHECK(contains(usage_error([&] { trained_by({generator(), generator()}, 2); }), "two programs have the name"));
  CHECK(contains(usage_error([&] { trained_by(std::vector<Program>{}, 2); }), "the model has no program"));
  Program elsewhere = discriminator();
  elsewhere.trains = std::vector<std::size_t>{0};
  CHECK(contains(usage_error([&] {
                   trained_by({elsewhere, generator()}, 2);
                 }),
                 "program \"discriminator\": unit 0, which it trains, has no backward window"));
  elsewhere.trains = std::vector<std::size_t>{5};
  CHECK(contains(usage_error([&] { trained_by({elsewhere, generator()}, 2); }), "trains unit 5, but the model has 2"));
  Program nameless = discriminator();
  nameless.name.clear();
  CHECK(contains(usage_error([&] { trained_by({nameless, generator()}, 2); }), "a program without a name"));
  Program idle;
  idle.name = "idle";
  CHECK(contains(usage_error([&] { trained_by({discriminator(), idle}, 2); }), "program \"idle\" has no windows"));
}

}  // namespace tessera::plan
