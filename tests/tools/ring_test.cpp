// The ring's bytes and times, counted round by round too, and what a step hides of them.
#include "cost/ring.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

namespace tools::cost {

namespace ring_test {

constexpr Link ethernet{.bandwidth = 1.25e9};
constexpr std::size_t rank_counts[] = {1, 2, 3, 4, 5, 7, 8, 13, 64};

// Runs the ring on chunks: in each round a rank sends the chunk that it received before. Returns the rounds until
// every rank's chunk number `rank` is the sum over all ranks.
std::size_t rounds_until_reduced(std::size_t ranks) {
  std::vector<std::vector<int>> sums(ranks, std::vector<int>(ranks, 1));
  const auto reduced = [&] {
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      if (sums[rank][rank] != static_cast<int>(ranks)) return false;
    }
    return true;
  };
  std::size_t rounds = 0;
  for (; !reduced(); ++rounds) {
    const std::vector<std::vector<int>> before = sums;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      const std::size_t chunk = (rank + 2 * ranks - 1 - rounds) % ranks;
      sums[(rank + 1) % ranks][chunk] += before[rank][chunk];
    }
  }
  return rounds;
}

TEST_CASE("four_ranks_reduce_100_MB_over_10_Gbit_in_120_ms") {
  const Traffic traffic = ring_all_reduce(100e6, 4, ethernet);
  CHECK(traffic.bytes == 150e6);
  CHECK(traffic.seconds == 0.12);
  CHECK(traffic.rounds == 6);
  CHECK(ring_all_reduce(50e6, 4, ethernet).seconds == 0.06);
}

TEST_CASE("the_rounds_are_those_after_which_each_rank_has_its_sum") {
  for (const std::size_t ranks : rank_counts) {
    const Traffic traffic = ring_reduce_scatter(1e6, ranks, ethernet);
    CHECK(traffic.rounds == rounds_until_reduced(ranks));
    CHECK(traffic.bytes == doctest::Approx(static_cast<double>(traffic.rounds) * 1e6 / static_cast<double>(ranks)));
  }
}

TEST_CASE("an_all_reduce_is_a_reduce_scatter_and_an_all_gather") {
  for (const std::size_t ranks : rank_counts) {
    const Link link{.bandwidth = 50e9, .latency = 5e-6};
    const Traffic reduce = ring_reduce_scatter(12345, ranks, link);
    const Traffic gather = ring_all_gather(12345, ranks, link);
    const Traffic both = ring_all_reduce(12345, ranks, link);
    CHECK(both.bytes == reduce.bytes + gather.bytes);
    CHECK(both.rounds == reduce.rounds + gather.rounds);
    CHECK(both.seconds == reduce.seconds + gather.seconds);
    CHECK(reduce.seconds == gather.seconds);
  }
}

TEST_CASE("one_rank_moves_nothing_and_no_bytes_take_the_latency_of_each_round") {
  CHECK(ring_all_reduce(1e9, 1, {.bandwidth = 1, .latency = 1}).seconds == 0);
  CHECK(ring_all_reduce(0, 5, {.bandwidth = 1, .latency = 1}).seconds == 8);
}

TEST_CASE("bytes_per_rank_stay_below_twice_the_size_however_many_ranks") {
  double before = 0;
  for (std::size_t ranks = 1; ranks <= 1'048'576; ranks *= 2) {
    const double bytes = ring_all_reduce(1e9, ranks, ethernet).bytes;
    CHECK(bytes >= before);
    CHECK(bytes < 2e9);
    before = bytes;
  }
}

TEST_CASE("a_step_hides_communication_up_to_its_cover") {
  CHECK(step(0.3, 0.12, 0).seconds == doctest::Approx(0.42));
  CHECK(step(0.3, 0.12, 0).share == doctest::Approx(0.12 / 0.42));
  CHECK(step(0.3, 0.12, 0.2).exposed == 0);
  CHECK(step(0.3, 0.25, 0.2).exposed == doctest::Approx(0.05));
  for (const double communication : {0.0, 0.1, 0.3, 0.7}) {
    CHECK(step(0.3, communication, 0.3).seconds == doctest::Approx(std::max(0.3, communication)));
  }
  CHECK(step(0, 0, 0).share == 0);
}

}  // namespace ring_test

}  // namespace tools::cost
