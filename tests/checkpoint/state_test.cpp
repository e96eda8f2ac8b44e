// A checkpoint's state: every bit of it comes back, and files of later revisions can be read.
#include "tessera/checkpoint/state.hpp"

#include <doctest/doctest.h>

#include <bit>
#include <cstring>
#include <limits>
#include <string>

#include "tessera/base/error.hpp"

using namespace tessera;

namespace state_test {

CheckpointState full_state() {
  return {
      .step = 100,
      .updates = 98,
      .skipped_updates = 2,
      .loss_scale = 65536.0f,
      .good_steps = 17,
      .decay_power = {0.1 + 0.2, 1e-310},
      .sampler =
          SamplerState{.samples = 1797, .seed = std::numeric_limits<std::uint64_t>::max(), .epoch = 3, .position = 64},
      .values = {{"", ""}, {"note", "line\nand \"quotes\", naïve"}}};
}

std::string complaint(const std::string& text) {
  try {
    parse_state(text, "folder/state.json");
  } catch (const DataError& error) {
    const std::string message = error.what();
    REQUIRE(message.rfind("folder/state.json: ", 0) == 0);
    return message.substr(std::strlen("folder/state.json: "));
  }
  return "accepted";
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const std::size_t place = text.find(from);
  REQUIRE(place != std::string::npos);
  return text.replace(place, from.size(), to);
}

TEST_CASE("a_state_comes_back_as_it_was") {
  CHECK(parse_state(compose(CheckpointState{}), "x") == CheckpointState{});
  CHECK(parse_state(compose(full_state()), "x") == full_state());
}

TEST_CASE("version_1_of_the_state_is_read_as_it_was_written") {
  const CheckpointState state = parse_state(R"({"format": "tessera-state", "version": 1, "revision": 0, "step": 3,
      "updates": 2, "skipped_updates": 1, "loss_scale": {"value": 1024.0, "bits": "44800000"}, "good_steps": 1,
      "decay_power": [{"value": 0.81, "bits": "3fe9eb851eb851ec"}, {"value": null, "bits": "7ff0000000000000"}],
      "values": {}})",
                                            "x");
  CHECK(state == CheckpointState{.step = 3,
                                 .updates = 2,
                                 .skipped_updates = 1,
                                 .loss_scale = 1024.0f,
                                 .good_steps = 1,
                                 .decay_power = {0.81, std::numeric_limits<double>::infinity()}});
}

TEST_CASE("a_sampler_of_version_1_is_in_the_order_that_was_stored_then") {
  const std::string now = compose(full_state());
  const std::string then = replaced(replaced(now, "\"version\": 2", "\"version\": 1"),
                                    "\"position\": 64,\n  \"order\": 2", "\"position\": 64");
  CheckpointState expected = full_state();
  expected.sampler->order = 1;
  CHECK(parse_state(then, "x") == expected);
  CHECK(parse_state(now, "x").sampler->order == sampler_order);
  CHECK(complaint(replaced(then, "\"version\": 1", "\"version\": 2")) == "sampler: has no \"order\"");
  CHECK(complaint(replaced(now, "\"version\": 2", "\"version\": 1")) == "sampler: has an \"order\"");
}

TEST_CASE("replicas_that_count_for_themselves_make_a_later_version") {
  CheckpointState state = full_state();
  state.replicas = {{.updates = 98, .skipped_updates = 2, .loss_scale = 65536.0f, .good_steps = 17},
                    {.updates = 97, .skipped_updates = 3, .loss_scale = 0.5f, .decay_power = {0.25, -0.0}}};
  const std::string text = compose(state);
  CHECK(parse_state(text, "x") == state);
  CHECK(text.find("\"version\": 3") != std::string::npos);
  CHECK(complaint(replaced(text, "\"version\": 3", "\"version\": 2")) == "is of version 2 and has replicas");
  CHECK(complaint(replaced(compose(full_state()), "\"version\": 2", "\"version\": 3")) ==
        "is of version 3 and has no replicas");
  CHECK(complaint(replaced(text, "\"updates\": 97,", "")) == R"(replicas[1]: has no member "updates")");
  state.replicas[1].good_steps = -1;
  CHECK_THROWS_AS(compose(state), UsageError);
}

TEST_CASE("programs_that_count_for_themselves_make_a_later_version") {
  CheckpointState state = full_state();
  state.programs = {{{.updates = 98, .skipped_updates = 2, .loss_scale = 65536.0f, .good_steps = 17}, "judge"},
                    {{.updates = 97, .skipped_updates = 3, .loss_scale = 0.5f, .decay_power = {0.25, -0.0}}, "make"}};
  const std::string text = compose(state);
  CHECK(parse_state(text, "x") == state);
  CHECK(text.find("\"version\": 4") != std::string::npos);
  CHECK(complaint(replaced(text, "\"version\": 4", "\"version\": 2")) == "is of version 2 and has programs");
  CHECK(complaint(replaced(compose(full_state()), "\"version\": 2", "\"version\": 4")) ==
        "is of version 4 and has no programs");
  CHECK(complaint(replaced(text, "\"name\": \"make\",", "")) == R"(programs[1]: has no member "name")");
  state.replicas = {{.updates = 1}, {.updates = 1}};
  CHECK_THROWS_AS(compose(state), UsageError);
}

TEST_CASE("numbers_keep_every_bit_and_those_that_json_lacks_too") {
  CheckpointState state;
  state.loss_scale = std::bit_cast<float>(0x7fc01234u);  // a NaN with a payload
  state.decay_power = {-std::numeric_limits<double>::infinity(), -0.0};
  const CheckpointState again = parse_state(compose(state), "x");
  CHECK(std::bit_cast<std::uint32_t>(again.loss_scale) == 0x7fc01234u);
  CHECK(std::bit_cast<std::uint64_t>(again.decay_power[0]) == std::bit_cast<std::uint64_t>(state.decay_power[0]));
  CHECK(std::bit_cast<std::uint64_t>(again.decay_power[1]) == std::bit_cast<std::uint64_t>(-0.0));
}

TEST_CASE("the_bits_are_read_and_not_the_decimal") {
  const std::string text = replaced(compose(full_state()), "65536.0", "1.0");
  CHECK(parse_state(text, "x") == full_state());
}

TEST_CASE("members_of_a_later_revision_are_skipped_and_unknown_ones_of_this_are_refused") {
  const std::string member = R"("colour": {"of": [{}, [[1.5]], null], "bits": "x"}, "shade": true, "step":)";
  const std::string text = replaced(compose(full_state()), "\"step\":", member);
  CHECK(complaint(text) == R"(has an unknown member "colour")");
  CHECK(parse_state(replaced(text, "\"revision\": 0", "\"revision\": 1"), "x") == full_state());
  CHECK(complaint(replaced(replaced(text, "\"revision\": 0", "\"revision\": 1"), "\"shade\"", "\"colour\"")) ==
        R"("colour" is given twice)");
}

TEST_CASE("members_of_a_later_revision_are_skipped_at_every_depth") {
  CheckpointState with_replicas = full_state();
  with_replicas.replicas = {{.updates = 98}, {.updates = 97}};
  CheckpointState with_programs = full_state();
  with_programs.programs = {{{.updates = 98}, "judge"}, {{.updates = 97}, "make"}};
  struct Case {
    CheckpointState state;
    std::string before;  // which member
    std::string place;   // that an error names
  };
  for (const Case& each : {Case{full_state(), "\"seed\":", "sampler"},
                           {full_state(), "\"bits\": \"47800000\"", "loss_scale"},
                           {with_replicas, "\"updates\": 97", "replicas[1]"},
                           {with_programs, "\"name\": \"make\"", "programs[1]"}}) {
    const std::string text = replaced(compose(each.state), each.before, "\"colour\": [{}, 1], " + each.before);
    CHECK(complaint(text) == each.place + R"(: has an unknown member "colour")");
    CHECK(parse_state(replaced(text, "\"revision\": 0", "\"revision\": 1"), "x") == each.state);
  }
}

TEST_CASE("a_later_version_is_refused_with_what_to_do") {
  CHECK(complaint(replaced(compose(full_state()), "\"version\": 2", "\"version\": 6")) ==
        "version: 6 was written by a newer version of Tessera; this one reads up to 5: read it with that version or a "
        "later one");
}

TEST_CASE("states_that_are_not_the_json_they_must_be_are_refused") {
  const std::string good = compose(full_state());
  CHECK(complaint("") == "is not JSON: wrong at its byte 1");
  CHECK(complaint("[]") == "expected an object, found a list");
  CHECK(complaint(replaced(good, "tessera-state", "other")) == "format: is not that of a checkpoint's state");
  CHECK(complaint(replaced(good, "\"updates\": 98,", "")) == R"(has no member "updates")");
  CHECK(complaint(replaced(good, "47800000", "4780000")) ==
        R"(loss_scale.bits: expected 8 hexadecimal digits, found "4780000")");
  CHECK(complaint(replaced(good, "\"good_steps\": 17", "\"good_steps\": 2147483648")) ==
        "good_steps: 2147483648 is too large");
  CHECK(complaint(replaced(good, "\"note\": ", "\"note\": 1, \"other\": ")) ==
        R"(values."note": expected a text, found a number)");
  CHECK(
      complaint(replaced(good, "\"decay_power\": [", "\"decay_power\": [{\"value\":0,\"bits\":\"0000000000000000\"},"))
          .find("decay_power[2].bits: there must be two") == 0);
  CHECK(complaint(R"({"decay_power":[]})") == "decay_power[0]: there must be two");
  for (std::size_t length = 0; length + 1 < good.size(); ++length)
    CHECK(complaint(good.substr(0, length)) != "accepted");
}

TEST_CASE("states_that_no_file_can_hold_are_the_users_error") {
  CheckpointState state;
  state.good_steps = -1;
  CHECK_THROWS_AS(compose(state), UsageError);
  CHECK_THROWS_WITH_AS(compose(CheckpointState{.values = {{"a", "\xff"}}}),
                       "checkpoint: values and their names must be UTF-8", UsageError);
  CHECK_THROWS_AS(compose(CheckpointState{.values = {{"a", std::string(state_limit.count(), 'a')}}}), UsageError);
}

}  // namespace state_test
