// A job's steps and times, Amdahl's law, and the learning rates of larger batches.
#include "cost/job.hpp"

#include <doctest/doctest.h>

#include <cmath>

namespace tools::cost {

namespace job_test {

constexpr std::size_t rank_counts[] = {1, 2, 3, 1'048'576};
constexpr Job imagenet{.samples = 1'280'000,
                       .batch = 256,
                       .ranks = 4,
                       .throughput = 200,
                       .precision_gain = 0.3,
                       .overhead = 0.1,
                       .epochs = 90};

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

TEST_CASE("the_largest_job_that_can_be_asked_for_is_counted_in_64_bits") {
  Job job{.samples = 1'000'000'000'000, .batch = 1'000'000'000'000, .ranks = 1'048'576, .throughput = 1};
  CHECK(cost_of(job).global_batch == 1'048'576'000'000'000'000);
  job.batch = job.ranks = 1;
  job.epochs = 1'000'000;
  CHECK(cost_of(job).steps == 1'000'000'000'000'000'000);
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

}  // namespace job_test

}  // namespace tools::cost
