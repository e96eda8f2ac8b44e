// A job's steps and times, Amdahl's law, and the learning rates of larger batches.
#include "cost/job.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "tessera/base/error.hpp"

namespace tools::cost {

namespace job_test {

constexpr std::size_t rank_counts[] = {1, 2, 3, 1'048'576};
constexpr double nan = std::numeric_limits<double>::quiet_NaN();
constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr Job imagenet{.samples = 1'280'000,
                       .batch = 256,
                       .ranks = 4,
                       .throughput = 200,
                       .precision_gain = 0.3,
                       .overhead = 0.1,
                       .epochs = 90};

Job with(double throughput, double gain, double overhead) {
  Job job = imagenet;
  job.throughput = throughput;
  job.precision_gain = gain;
  job.overhead = overhead;
  return job;
}

TEST_CASE("four_ranks_go_through_imagenet_in_1368_seconds") {
  const JobCost cost = cost_of(imagenet);
  CHECK(cost.global_batch == 1024);
  CHECK(cost.steps_per_epoch == 1250);
  CHECK(cost.steps == 112'500);
  CHECK(cost.samples_per_second == doctest::Approx(936).epsilon(1e-14));
  CHECK(cost.seconds_per_epoch == doctest::Approx(1280000.0 / 936).epsilon(1e-14));
  CHECK(cost.seconds == doctest::Approx(90 * 1280000.0 / 936).epsilon(1e-14));
}

TEST_CASE("a_short_last_step_is_a_step") {
  Job job{.samples = 1, .batch = 3, .ranks = 5, .throughput = 1};
  CHECK(cost_of(job).steps_per_epoch == 1);
  job.samples = 15;
  CHECK(cost_of(job).steps_per_epoch == 1);
  job.samples = 16;
  CHECK(cost_of(job).steps_per_epoch == 2);
}

TEST_CASE("what_no_job_has_is_refused") {
  for (const auto member : {&Job::samples, &Job::batch, &Job::ranks, &Job::epochs}) {
    Job job = imagenet;
    job.*member = 0;
    CHECK_THROWS_AS(cost_of(job), tessera::UsageError);
  }
  for (const double value : {-1.0, nan, infinity}) {
    CHECK_THROWS_AS(cost_of(with(value, 0, 0)), tessera::UsageError);
    CHECK_THROWS_AS(cost_of(with(1, value, 0)), tessera::UsageError);
    CHECK_THROWS_AS(cost_of(with(1, 0, value)), tessera::UsageError);
    CHECK_THROWS_AS(scaled(value, 4), tessera::UsageError);
    CHECK_THROWS_AS(scaled(1, value), tessera::UsageError);
  }
  CHECK_THROWS_AS(cost_of(with(0, 0, 0)), tessera::UsageError);
  CHECK_THROWS_AS(cost_of(with(1, 0, 1)), tessera::UsageError);
}

TEST_CASE("numbers_beyond_64_bits_are_refused") {
  constexpr std::uint64_t most = std::numeric_limits<std::uint64_t>::max();
  Job job{.samples = most, .batch = most, .ranks = 2, .throughput = 1};
  CHECK_THROWS_AS(cost_of(job), tessera::UsageError);
  job.batch = 1;
  job.ranks = 1;
  job.epochs = 2;
  CHECK_THROWS_AS(cost_of(job), tessera::UsageError);
  job.epochs = 1;
  CHECK(cost_of(job).steps == most);
}

TEST_CASE("learning_rates_grow_linearly_for_sgd_and_by_the_root_for_adam") {
  CHECK(scaled(0.1, 4).linear == 0.4);
  CHECK(scaled(0.1, 4).square_root == 0.2);
  CHECK(scaled(0.1, 1).linear == 0.1);
  CHECK(scaled(0.1, 1).square_root == 0.1);
}

TEST_CASE("amdahl_goes_from_one_to_its_limit") {
  CHECK(amdahl_speedup(0.1, 1) == doctest::Approx(1));
  CHECK(amdahl_speedup(0.1, 10) == doctest::Approx(1 / 0.19));
  CHECK(amdahl_speedup(0, 7) == doctest::Approx(7));
  CHECK(amdahl_speedup(1, 7) == 1);
  CHECK(amdahl_limit(0.01) == 100);
  CHECK(std::isinf(amdahl_limit(0)));
  for (const std::size_t ranks : rank_counts) CHECK(amdahl_speedup(0.05, ranks) < amdahl_limit(0.05));
}

TEST_CASE("what_amdahl_does_not_know_is_refused") {
  for (const double serial : {-0.1, 1.1, nan, infinity}) {
    CHECK_THROWS_AS(amdahl_speedup(serial, 2), tessera::UsageError);
    CHECK_THROWS_AS(amdahl_limit(serial), tessera::UsageError);
  }
  CHECK_THROWS_AS(amdahl_speedup(0.1, 0), tessera::UsageError);
}

}  // namespace job_test

}  // namespace tools::cost
