// The drawings: the documented plan, as a file beside this one, and the canonical text.
#include "tessera/plan/draw.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>

#include "errors.hpp"
#include "models.hpp"

namespace tessera::plan::draw_test {

// Three units, one after the other; the plan that the documentation shows.
Plan documented() {
  const Model model{
      "documented", {unit_of("A", {1024}), unit_of("B", {1024}), unit_of("C", {1024})}, Program::chain(3)};
  return compile(model, {.strategy = Strategy::fsdp, .precision = bf16_mixed, .ranks = 4, .prefetch = 1});
}

std::string read(const std::string& path) {
  std::ifstream file(path);
  REQUIRE_MESSAGE(file, "cannot read " << path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

TEST_CASE("the_documented_plan_is_drawn_as_its_file_says") {
  const std::string expected = read(TESTS_PLAN_DIR "/documented_plan.txt");
  CHECK_MESSAGE(draw(documented()) == expected, "draw() now gives:\n" << draw(documented()));
}

TEST_CASE("a_drawing_has_a_row_for_every_operation") {
  const Plan plan = documented();
  for (std::size_t segment = 0; segment < plan.segments.size(); ++segment) {
    const std::string text = draw(plan, segment);
    const auto lines = static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
    CHECK(lines == plan.segments[segment].operations.size() + 2);
    for (const Operation& operation : plan.segments[segment].operations)
      CHECK(contains(text, describe(plan, operation)));
    CHECK(contains(draw(plan), text));
  }
}

TEST_CASE("the_canonical_text_has_a_line_for_every_unit_buffer_and_operation") {
  const Plan plan = documented();
  const std::string text = canonical_text(plan);
  CHECK(contains(text,
                 "options fsdp bf16 bf16 bf16 mesh replicate 1 x shard 4 outer 0 1 micro 1 reduced prefetch 1 reshard "
                 "true overlap true "
                 "bucket 0 hooks false fp32 sums false activations 0 checkpoints none staging none\n"));
  CHECK(contains(text, "unit A\nparameter A.p0 [1024]\n"));
  for (const Buffer& buffer : plan.buffers) CHECK(contains(text, "buffer " + buffer.name + " "));
  std::size_t lines =
      1 + 2 * plan.units.size() + plan.optimizer_states.size() + plan.buffers.size() + plan.segments.size();
  for (const Segment& segment : plan.segments) lines += segment.operations.size();
  CHECK(static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n')) == lines);
}

}  // namespace tessera::plan::draw_test
