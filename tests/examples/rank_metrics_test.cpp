// --metrics-per-rank is tried on made-up ranks.
#include "trainer/src/rank_metrics.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "tessera/comm/run.hpp"

using namespace tessera::trainer;

namespace rank_metrics_test {

std::vector<RankFigures> even(std::size_t ranks) {
  return std::vector<RankFigures>(
      ranks, RankFigures{.loss = 4.0, .weight = 2.0, .seconds = 0.010, .waiting = 0.002, .loading = 0.001});
}

std::string said_of(SlowRank& slow, const std::vector<RankFigures>& ranks, std::size_t steps) {
  std::string all;
  for (std::size_t step = 0; step < steps; ++step) all += slow.after(ranks).value_or("");
  return all;
}

TEST_CASE("spreads_name_the_rank_of_the_largest_value") {
  std::vector<RankFigures> ranks = even(4);
  ranks[2] = {.loss = 9.0, .weight = 3.0, .seconds = 0.011, .waiting = 0.0, .loading = 0.004};
  ranks[3] = {.seconds = 0.009, .waiting = 0.008};  // without samples
  const tools::Json spread = to_json(ranks);
  CHECK(spread.at("loss") == tools::Json{{"min", 2.0}, {"median", 2.0}, {"max", 3.0}, {"max_rank", 2u}});
  CHECK(spread.at("step_seconds") == tools::Json{{"min", 0.009}, {"median", 0.010}, {"max", 0.011}, {"max_rank", 2u}});
  CHECK(spread.at("waiting_seconds").at("max_rank").whole() == 3);
  CHECK(spread.at("loader_seconds").at("max").number() == 0.004);
}

TEST_CASE("what_no_rank_knows_is_left_out") {
  std::vector<RankFigures> ranks = even(2);
  for (RankFigures& rank : ranks) rank.waiting = std::numeric_limits<double>::quiet_NaN();
  CHECK_FALSE(to_json(ranks).contains("waiting_seconds"));
  SlowRank slow;
  ranks[1].seconds = 1.0;
  CHECK(said_of(slow, ranks, 100) == "");
}

TEST_CASE("a_slow_rank_is_named_once_with_what_it_waits_for") {
  std::vector<RankFigures> ranks = even(3);
  ranks[1] = {.loss = 1, .weight = 1, .seconds = 0.0121, .waiting = 0.001, .loading = 0.001};  // 11.1 ms and 8 ms
  SlowRank computing;
  CHECK(said_of(computing, ranks, SlowRank::steps_together - 1) == "");
  CHECK(said_of(computing, ranks, 1) ==
        "rank 1 is slower than the others: 11.1 ms of its own in a step, where theirs is 8 ms; it computes for longer");
  CHECK(said_of(computing, ranks, 100) == "");
  ranks[1].loading = 0.004;
  SlowRank loading;
  CHECK(said_of(loading, ranks, 100) ==
        "rank 1 is slower than the others: 11.1 ms of its own in a step, where theirs is 8 ms; for 4 ms of them it "
        "waits for its samples");
}

TEST_CASE("a_third_is_allowed_and_so_are_single_steps_and_a_single_rank") {
  std::vector<RankFigures> ranks = even(3);
  ranks[0].seconds = 0.0125;  // 10.5 ms of its own
  SlowRank slow;
  CHECK(said_of(slow, ranks, 100) == "");
  std::string all;
  for (std::size_t step = 0; step < 200; ++step) {
    std::vector<RankFigures> now = even(3);
    if (step % 3 == 0) now[2].seconds = 5.0;
    all += slow.after(now).value_or("");
  }
  CHECK(all == "");
  SlowRank alone;
  CHECK(said_of(alone, even(1), 100) == "");
}

TEST_CASE("the_mean_has_the_bits_of_worlds") {
  tessera::launch({.ranks = 3}, [](tessera::World& world) {
    const auto rank = static_cast<double>(world.rank());
    const RankFigures mine{.loss = 0.1 + 0.7 * rank, .weight = 0.3 * rank, .seconds = rank};
    const std::vector<RankFigures> all = gather(world, mine);
    REQUIRE(all.size() == 3);
    CHECK(all[2].seconds == 2.0);
    CHECK(mean_loss(all) == world.mean(mine.loss, mine.weight, "loss"));
  });
}

}  // namespace rank_metrics_test
