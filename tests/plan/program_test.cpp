// Programs: the default chain, and what check() refuses, with the window named.
#include "tessera/plan/program.hpp"

#include <doctest/doctest.h>

#include "errors.hpp"
#include "models.hpp"

namespace tessera::plan::program_test {

// All units have parameters, none of them frozen.
std::vector<std::size_t> trained_by(const std::vector<Program>& programs, std::size_t units) {
  return trainers(programs, std::vector<Trainable>(units, {.parameters = true, .trained = true}));
}

std::string refusal(const std::vector<Program>& programs, std::size_t units) {
  return usage_error([&] { trained_by(programs, units); });
}

TEST_CASE("a_chain_runs_forward_in_order_and_backward_in_reverse") {
  CHECK(Program::chain(3).micro_batch == windows("f0 f1 f2 b2 b1 b0"));
  CHECK(Program::chain(3).evaluation == windows("e0 e1 e2"));
}

TEST_CASE("check_accepts_every_program_of_the_matrix") {
  for (const Model& model : all_models()) {
    INFO(model.name);
    CHECK_NOTHROW(trained_by(input_of(model, {}).programs, model.units.size()));
  }
}

TEST_CASE("check_names_a_unit_that_does_not_exist") {
  CHECK(refusal({program("f0 f1")}, 1) == "program: window 1 (forward) names unit 1, but the model has 1 units");
  CHECK(contains(refusal({program("f0 b0", "e0 e7")}, 1), "window 1 (evaluate) names unit 7"));
}

TEST_CASE("check_names_a_unit_without_backward_window") {
  CHECK(refusal({program("f0 f1 b0")}, 2) ==
        "program: unit 1 has no backward window: give it one, or freeze its parameters");
}

TEST_CASE("units_that_recompute_do_so_right_before_each_backward_window") {
  const std::vector<bool> all(2, true);
  CHECK(recomputing(Program::chain(2), {false, true}).micro_batch == windows("f0 f1 r1 b1 b0"));
  CHECK(recomputing(Program::chain(2), {false, false}).micro_batch == Program::chain(2).micro_batch);
  CHECK(recomputing(Program::chain(2), all).evaluation == Program::chain(2).evaluation);
  const Program once = recomputing(program("f0 f1 f0 b0 b1 b0"), {true, false});
  CHECK(once.micro_batch == windows("f0 f1 f0 r0 b0 b1 r0 b0"));
  CHECK(recomputing(once, {true, false}).micro_batch == once.micro_batch);
}

TEST_CASE("what_was_open_inside_a_window_is_so_again_where_its_unit_recomputes") {
  const Program nested = program("f0 f1 f0+ b0 b1 b0+");
  CHECK(recomputing(nested, {true, false}).micro_batch == windows("f0 f1 f0+ r0 r1 r0+ b0 b1 b0+"));
  // A recorded pass has it so: the outer window goes on between the two inner ones.
  const std::vector<WindowUse> inner = windows("f0 f1 f0+ b0 r1 b0+ b1 b0+");
  CHECK(recomputing(nested, {false, true}).micro_batch == inner);
  CHECK(recomputing({inner, {}}, {false, true}).micro_batch == inner);
  const Program both = recomputing(nested, {true, true});
  CHECK(both.micro_batch.size() == 11);
  CHECK(recomputing(both, {true, true}).micro_batch == both.micro_batch);
  const Program backward_inside = program("f1 f0 b1 f0+ b0");
  CHECK(contains(usage_error([&] {
                   recomputing(backward_inside, {true, false});
                 }),
                 "a backward window of unit 1 is open inside its forward window"));
}

TEST_CASE("check_refuses_backward_and_recompute_before_forward") {
  CHECK(contains(refusal({program("b0")}, 1), "window 0 (backward) of unit 0 comes before any forward"));
  CHECK(contains(refusal({program("r0 f0 b0")}, 1), "window 0 (recompute) of unit 0 comes before any forward"));
}

TEST_CASE("check_refuses_kinds_in_the_wrong_list") {
  CHECK(contains(refusal({program("f0 e0 b0")}, 1), "window 1"));
  CHECK(contains(refusal({program("f0 b0", "f0")}, 1), "window 0 of the evaluation is a forward window"));
}

TEST_CASE("windows_close_where_none_resumes_them") {
  CHECK(closes({}) == std::vector<bool>{});
  CHECK(closes(windows("f0 f1 f0+ b1")) == std::vector<bool>{false, true, true, true});
  CHECK(closes(windows("f0 f1 f0+ f1 f0+ b0")) == std::vector<bool>{false, true, false, true, true, true});
}

TEST_CASE("windows_that_are_not_nested_in_each_other_are_refused") {
  CHECK(contains(refusal({program("f0 f1 b0+")}, 2),
                 "program: window 2 (backward) of unit 0 resumes a window that is not open there"));
  CHECK(
      contains(refusal({program("f0 f1 f0+ f1+")}, 2),
               "window 2 (forward) of unit 0 resumes a window that is not open there, or inside which another one is"));
  CHECK(contains(refusal({program("f0+")}, 2), "window 0 (forward) of unit 0 resumes"));
  CHECK(contains(refusal({program("f0 f0+")}, 2), "resumes a window inside which none was open"));
  CHECK(contains(refusal({program("f0 f1 b1 b0", "e0 e1+")}, 2), "window 1 (evaluate) of unit 1 resumes"));
}

using Units = std::vector<std::size_t>;

// Unit 0 is a generator, unit 1 a discriminator.
Program named(const std::string& name, const std::string& micro_batch,
              const std::optional<Units>& trains = std::nullopt) {
  Program result = program(micro_batch);
  result.name = name;
  result.trains = trains;
  return result;
}
const Program discriminator = named("discriminator", "f0 f1 b1"),
              generator = named("generator", "f0 f1 b1 b0", Units{0}), untold = named("generator", "f0 f1 b1 b0");

TEST_CASE("each_unit_is_trained_by_the_program_that_says_so") {
  CHECK(trained_by({discriminator, generator}, 2) == std::vector<std::size_t>{1, 0});
  const std::vector<Trainable> units = {{.parameters = true, .trained = false}, {.parameters = true, .trained = true}};
  CHECK(trainers(std::vector{discriminator}, units) == std::vector<std::size_t>{no_program, 0});
}

TEST_CASE("a_unit_without_parameters_belongs_to_the_first_program_that_comes_back_to_it") {
  const std::vector<Trainable> units = {{.parameters = true, .trained = true}, {.parameters = false, .trained = true}};
  CHECK(trainers(std::vector{discriminator, untold}, units) == std::vector<std::size_t>{1, 0});
}

TEST_CASE("programs_that_do_not_go_together_are_refused_by_name") {
  CHECK(contains(refusal({discriminator, untold}, 2),
                 "unit 1 is trained by two programs, \"discriminator\" and \"generator\""));
  CHECK(contains(refusal({discriminator}, 3), "unit 0 has no backward window"));
  CHECK(contains(refusal({discriminator, generator}, 3), "no program trains unit 2"));
  CHECK(contains(refusal({generator, generator}, 2), "two programs have the name"));
  CHECK(contains(refusal({}, 2), "the model has no program"));
  CHECK(contains(refusal({named("discriminator", "f0 f1 b1", Units{0}), generator}, 2),
                 "program \"discriminator\": unit 0, which it trains, has no backward window"));
  CHECK(contains(refusal({named("discriminator", "f0 f1 b1", Units{5}), generator}, 2),
                 "trains unit 5, but the model has 2"));
  CHECK(contains(refusal({named("", "f0 f1 b1"), generator}, 2), "a program without a name"));
  CHECK(contains(refusal({discriminator, named("idle", "")}, 2), "program \"idle\" has no windows"));
}

}  // namespace tessera::plan::program_test
