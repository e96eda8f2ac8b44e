// The learning rate of each step.
#include "tessera/optim/schedule.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <numbers>
#include <string>
#include <vector>

#include "../error_text.hpp"
#include "tessera/base/error.hpp"

using tessera::Decay;
using tessera::Schedule;
using tessera::ScheduleSettings;

namespace {

constexpr Decay decays[] = {Decay::constant, Decay::linear, Decay::cosine};

}  // namespace

TEST_CASE("warm_up_grows_linearly_to_the_rate_at_its_last_step") {
  for (const Decay decay : decays) {
    const Schedule schedule({.learning_rate = 0.5f, .warmup_steps = 5, .total_steps = 17, .decay = decay});
    for (std::size_t step = 1; step <= 5; ++step) {
      CHECK(schedule.at(step) == doctest::Approx(0.5 * static_cast<double>(step) / 5.0));
    }
    CHECK(schedule.at(5) == 0.5f);
  }
}

TEST_CASE("without_warm_up_a_constant_rate_is_constant") {
  const Schedule schedule({.learning_rate = 0.3f});
  for (const std::size_t step : std::vector<std::size_t>{1, 2, 3, 1'000'003}) CHECK(schedule.at(step) == 0.3f);
}

TEST_CASE("linear_and_cosine_decay_follow_their_formulas") {
  const ScheduleSettings settings = {
      .learning_rate = 0.9f, .min_learning_rate = 0.1f, .warmup_steps = 3, .total_steps = 16};
  for (std::size_t step = 3; step <= 16; ++step) {
    const double p = static_cast<double>(step - 3) / 13.0;
    ScheduleSettings linear = settings;
    linear.decay = Decay::linear;
    CHECK(Schedule(linear).at(step) == doctest::Approx(0.1 + 0.8 * (1.0 - p)));
    ScheduleSettings cosine = settings;
    cosine.decay = Decay::cosine;
    CHECK(Schedule(cosine).at(step) == doctest::Approx(0.1 + 0.4 * (1.0 + std::cos(std::numbers::pi * p))));
  }
}

TEST_CASE("a_decay_never_rises_and_ends_exactly_at_the_minimum") {
  for (const Decay decay : {Decay::linear, Decay::cosine}) {
    for (const std::size_t total : std::vector<std::size_t>{1, 2, 7, 101}) {
      const Schedule schedule(
          {.learning_rate = 0.3f, .min_learning_rate = 0.007f, .total_steps = total, .decay = decay});
      for (std::size_t step = 1; step < total; ++step) CHECK(schedule.at(step + 1) <= schedule.at(step));
      CHECK(schedule.at(total) == 0.007f);
      CHECK(schedule.at(total + 12) == 0.007f);
    }
  }
}

TEST_CASE("settings_out_of_range_are_named_with_their_value") {
  const auto message = [](ScheduleSettings settings) {
    return tests::error_text<tessera::UsageError>([&] { const Schedule schedule(settings); }, "accepted");
  };
  CHECK(message({.learning_rate = -0.5f}) == "Schedule: learning_rate must be at least 0 and finite, but is -0.5");
  CHECK(message({.learning_rate = std::numeric_limits<float>::quiet_NaN()}).find("learning_rate") != std::string::npos);
  CHECK(message({.learning_rate = 0.1f, .min_learning_rate = -1.0f}).find("min_learning_rate") != std::string::npos);
  CHECK(message({.learning_rate = 0.5f, .min_learning_rate = 0.75f}) ==
        "Schedule: min_learning_rate is 0.75, above the learning_rate of 0.5");
  CHECK(message({.warmup_steps = 5, .total_steps = 5, .decay = Decay::cosine}) ==
        "Schedule: total_steps must be above warmup_steps for a decay, but they are 5 and 5");
  CHECK(message({.warmup_steps = 5, .total_steps = 0}) == "accepted");
}
