// Schedules as lists: that they are whole, and what the facts in the header say of them.
#include "tessera/plan/schedule.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "errors.hpp"

namespace tessera::plan::schedule_test {

constexpr ScheduleKind kinds[] = {ScheduleKind::gpipe, ScheduleKind::one_f_one_b, ScheduleKind::interleaved,
                                  ScheduleKind::zb_h1};

// Every kind, and all shapes of up to six stages.
void for_each_schedule(const std::function<void(ScheduleKind, const ScheduleShape&, const Schedule&)>& body) {
  for (const ScheduleKind kind : kinds) {
    for (std::size_t stages = 1; stages <= 6; ++stages) {
      for (const std::size_t micro_batches : {stages, 2 * stages, 5 * stages, stages + 1}) {
        const bool interleaves = kind == ScheduleKind::interleaved;
        if (interleaves && micro_batches % stages > 0) continue;
        for (std::size_t chunks = 1; chunks <= (interleaves ? 3u : 1u); ++chunks) {
          const ScheduleShape shape{stages, micro_batches, chunks};
          body(kind, shape, schedule(kind, shape));
        }
      }
    }
  }
}

TEST_CASE("stages_stand_still_and_hold_activations_as_the_formulas_say") {
  for_each_schedule([](ScheduleKind kind, const ScheduleShape& shape, const Schedule& lists) {
    const auto& [stages, micro_batches, chunks] = shape;
    for (const PassSeconds& seconds : {PassSeconds{}, PassSeconds{2, 3, 1}, PassSeconds{3, 3, 2}}) {
      const double all = seconds.forward + seconds.backward_input + seconds.backward_parameters;
      const double saved = kind == ScheduleKind::zb_h1 ? 2 * seconds.backward_parameters : 0;
      for (const double idle : times(lists, shape, seconds).idle)
        CHECK(idle == doctest::Approx(static_cast<double>(stages - 1) * (all - saved)));
    }
    for (std::size_t stage = 0; stage < stages; ++stage) {
      const std::size_t held = kind == ScheduleKind::gpipe   ? micro_batches
                               : kind == ScheduleKind::zb_h1 ? stages
                               : chunks == 1                 ? stages - stage
                                                             : (chunks + 1) * stages - 1 - 2 * stage;
      CHECK(in_flight(lists[stage]) == std::min(micro_batches * chunks, held));
    }
  });
}

// A slow stage holds up all, and none of the others more than itself.
TEST_CASE("the_slowest_stage_sets_the_pace") {
  for_each_schedule([](ScheduleKind, const ScheduleShape& shape, const Schedule& lists) {
    std::vector<double> slowdown(shape.stages, 1);
    slowdown[shape.stages / 2] = 3;
    const double work = 9 * static_cast<double>(shape.micro_batches * shape.chunks);
    CHECK(times(lists, shape, {}, slowdown).step >= work);
    CHECK(times(lists, shape, {}, slowdown).idle[shape.stages / 2] <= times(lists, shape).step);
  });
}

// Gradients add up in one order: that of micro-batches.
TEST_CASE("micro_batches_go_back_in_their_order_in_every_schedule") {
  for_each_schedule([](ScheduleKind, const ScheduleShape& shape, const Schedule& lists) {
    for (const std::vector<ScheduledPass>& stage : lists) {
      std::vector<std::size_t> next(shape.chunks, 0);
      for (const ScheduledPass& pass : stage) {
        if (pass.kind == WindowKind::backward) CHECK(pass.micro_batch == next[pass.chunk]++);
      }
    }
  });
}

TEST_CASE("a_schedule_is_drawn_with_a_cell_for_each_second") {
  CHECK(draw(schedule(ScheduleKind::one_f_one_b, {2, 2}), {2, 2}) ==
        "stage 0  F0   F1   .    .    B0   B0   .    B1   B1\n"
        "stage 1  .    F0   B0   B0   F1   B1   B1   .    .\n");
  CHECK(draw(schedule(ScheduleKind::zb_h1, {2, 2}), {2, 2}) ==
        "stage 0  F0   F1   .    b0   W0   b1   W1\n"
        "stage 1  .    F0   b0   F1   b1   W0   W1\n");
}

// Each pass of each stage is left out, doubled, swapped with another, or one of a micro-batch or chunk that is not
// there: some lists of those that swap still are schedules, all others are refused.
TEST_CASE("a_list_that_is_no_schedule_is_refused") {
  const auto is_refused = [](const Schedule& lists, const ScheduleShape& shape) {
    return !usage_error([&] { check(lists, shape); }).empty();
  };
  for (const ScheduleKind kind : kinds) {
    const ScheduleShape shape{3, 6, kind == ScheduleKind::interleaved ? 2u : 1u};
    const Schedule lists = schedule(kind, shape);
    for (std::size_t stage = 0; stage < shape.stages; ++stage) {
      for (std::size_t at = 0; at < lists[stage].size(); ++at) {
        const bool is_half = lists[stage][at].kind == WindowKind::backward_input;
        const auto damaged = [&](const auto& damage) {
          Schedule mutant = lists;
          damage(mutant[stage], mutant[stage].begin() + static_cast<std::ptrdiff_t>(at));
          return mutant;
        };
        // Without its first half a backward pass is a whole one, and others wait for that.
        CHECK((is_half || is_refused(damaged([](auto& list, auto pass) { list.erase(pass); }), shape)));
        CHECK(is_refused(damaged([](auto& list, auto pass) { list.insert(pass, ScheduledPass(*pass)); }), shape));
        CHECK(is_refused(damaged([](auto&, auto pass) { pass->micro_batch += 6; }), shape));
        CHECK(is_refused(damaged([](auto&, auto pass) { pass->chunk += 2; }), shape));
      }
    }
  }
  // A warm-up that is one step too short: the first stage wants a gradient before it has sent what that waits for.
  Schedule early = schedule(ScheduleKind::one_f_one_b, {2, 2});
  std::swap(early[0][1], early[0][2]);
  CHECK_FALSE(is_refused(early, {2, 2}));
  std::swap(early[1][1], early[1][2]);
  CHECK(contains(usage_error([&] { check(early, {2, 2}); }), "wait for each other for ever: stage 0: backward"));
  CHECK(contains(usage_error([] { schedule(ScheduleKind::gpipe, {2, 2, 2}); }), "gpipe has one chunk"));
  CHECK(contains(usage_error([] { schedule(ScheduleKind::interleaved, {2, 3, 2}); }), "choose a multiple"));
  CHECK(contains(usage_error([] { schedule(ScheduleKind::gpipe, {0, 3}); }), "choose 1 or more"));
  CHECK(contains(usage_error([] { check(schedule(ScheduleKind::gpipe, {2, 2}), {3, 2}); }), "give one for each"));
}

}  // namespace tessera::plan::schedule_test
