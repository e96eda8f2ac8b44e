// The sampler deals each sample once, in an order that does not depend on the number of ranks.
#include "tessera/data/sampler.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <mutex>
#include <vector>

#include "allocation_counter.hpp"
#include "tessera/base/error.hpp"
#include "tessera/comm/run.hpp"

using namespace tessera;

namespace {

constexpr std::size_t rank_counts[] = {1, 2, 3, 4, 5, 7};
constexpr std::size_t sizes[] = {0, 1, 2, 5, 12, 101, 120};
constexpr std::size_t batches[] = {1, 2, 3, 7};

struct Sample {
  std::size_t index;
  float weight;
  friend bool operator==(const Sample&, const Sample&) = default;
};

std::vector<DistributedSampler> make_ranks(SamplerOptions options) {
  std::vector<DistributedSampler> result;
  for (options.rank = 0; options.rank < options.ranks; ++options.rank) result.emplace_back(options);
  return result;
}

// One global batch: the parts of all ranks, one after the other; empty at the epoch's end.
std::vector<Sample> next_global(std::vector<DistributedSampler>& ranks) {
  std::vector<Sample> result;
  std::size_t ended = 0;
  for (DistributedSampler& rank : ranks) {
    SampleBatch batch;
    if (!rank.next(batch)) {
      ++ended;
      continue;
    }
    REQUIRE(batch.indices.size() == rank.options().batch);
    REQUIRE(batch.weights.size() == rank.options().batch);
    for (std::size_t i = 0; i < batch.indices.size(); ++i) result.push_back({batch.indices[i], batch.weights[i]});
  }
  REQUIRE((ended == 0 || ended == ranks.size()));
  return result;
}

// The samples of weight 1 in the order in which they are dealt.
std::vector<std::size_t> dealt(std::vector<DistributedSampler>& ranks) {
  std::vector<std::size_t> result;
  std::vector<Sample> global;
  while (!(global = next_global(ranks)).empty()) {
    for (const Sample& sample : global) {
      if (sample.weight == 1.0f) result.push_back(sample.index);
    }
  }
  return result;
}

constexpr std::size_t granules = 12;

// The samples of each granule of a step, in the order of granules; empty at the epoch's end.
std::vector<std::vector<Sample>> next_granules(std::vector<DistributedSampler>& ranks) {
  std::vector<std::vector<Sample>> result(granules);
  std::size_t ended = 0;
  for (DistributedSampler& rank : ranks) {
    SampleBatch chosen;
    if (!rank.next(chosen)) {
      ++ended;
      continue;
    }
    const std::size_t batch = rank.options().batch;
    const Granules mine{.total = granules, .ranks = ranks.size(), .rank = rank.options().rank};
    REQUIRE(chosen.indices.size() == mine.mine() * batch);
    REQUIRE(chosen.weights.size() == chosen.indices.size());
    for (std::size_t i = 0; i < chosen.indices.size(); ++i) {
      result[mine.number(i / batch)].push_back({chosen.indices[i], chosen.weights[i]});
    }
  }
  REQUIRE((ended == 0 || ended == ranks.size()));
  return ended == 0 ? result : std::vector<std::vector<Sample>>();
}

// The same from as many ranks as a step has granules, each of which has one of them as its batch.
std::vector<std::vector<Sample>> next_parts(std::vector<DistributedSampler>& ranks) {
  std::vector<std::vector<Sample>> result;
  for (DistributedSampler& rank : ranks) {
    SampleBatch chosen;
    if (!rank.next(chosen)) return {};
    std::vector<Sample>& part = result.emplace_back();
    for (std::size_t i = 0; i < chosen.indices.size(); ++i) part.push_back({chosen.indices[i], chosen.weights[i]});
  }
  return result;
}

// Calls check(options of a sampler with granules, as of one rank).
template <typename Check>
void for_each_granular_layout(Check check) {
  for (const std::size_t size : std::vector<std::size_t>{0, 1, 11, 12, 13, 24, 37, 101, 251}) {
    for (const std::size_t batch : std::vector<std::size_t>{1, 2, 5}) {
      for (const Tail tail : {Tail::drop, Tail::pad}) {
        CAPTURE(size);
        CAPTURE(batch);
        check(SamplerOptions{.samples = size, .batch = batch, .granules = granules, .seed = 3, .tail = tail});
      }
    }
  }
}

// Those that divide the granules, those that do not, and as many as there are.
constexpr std::size_t granular_rank_counts[] = {1, 2, 3, 4, 5, 6, 7, 8, 11, 12};

template <typename Check>
void for_each_layout(Check check) {
  for (const std::size_t ranks : rank_counts) {
    for (const std::size_t size : sizes) {
      for (const std::size_t batch : batches) {
        CAPTURE(ranks);
        CAPTURE(size);
        CAPTURE(batch);
        check(SamplerOptions{.samples = size, .ranks = ranks, .batch = batch, .seed = 11});
      }
    }
  }
}

}  // namespace

// Whoever forgets SamplerOptions::rank would train every rank on the same samples.
TEST_CASE("a_sampler_of_a_world_deals_that_ranks_part") {
  std::mutex mutex;
  std::vector<std::size_t> seen;
  launch({.ranks = 3}, [&](World& world) {
    DistributedSampler sampler(world, {.samples = 12, .batch = 2});
    CHECK(sampler.options().ranks == 3);
    SampleBatch batch;
    while (sampler.next(batch)) {
      const std::lock_guard lock(mutex);
      seen.insert(seen.end(), batch.indices.begin(), batch.indices.end());
    }
  });
  std::sort(seen.begin(), seen.end());
  for (std::size_t i = 0; i < 12; ++i) CHECK(seen.at(i) == i);
  CHECK(seen.size() == 12);
}

TEST_CASE("padded_epochs_deal_every_sample_once_and_fill_up_with_weight_zero") {
  for_each_layout([](SamplerOptions options) {
    options.tail = Tail::pad;
    std::vector<DistributedSampler> ranks = make_ranks(options);
    for (std::uint64_t epoch = 0; epoch < 2; ++epoch) {
      for (DistributedSampler& rank : ranks) rank.set_epoch(epoch);
      std::vector<int> seen(options.samples, 0);
      std::size_t steps = 0;
      std::vector<Sample> global;
      for (; !(global = next_global(ranks)).empty(); ++steps) {
        for (const Sample& sample : global) {
          REQUIRE(sample.index < options.samples);
          REQUIRE((sample.weight == 0.0f || sample.weight == 1.0f));
          if (sample.weight == 1.0f) ++seen[sample.index];
        }
      }
      CHECK(std::all_of(seen.begin(), seen.end(), [](int times) { return times == 1; }));
      CHECK(steps == ranks[0].batches_per_epoch());
    }
  });
}

TEST_CASE("dropped_tails_leave_out_less_than_a_global_batch_and_repeat_nothing") {
  for_each_layout([](const SamplerOptions& options) {
    std::vector<DistributedSampler> ranks = make_ranks(options);
    std::vector<std::size_t> order = dealt(ranks);
    CHECK(order.size() == options.samples / (options.ranks * options.batch) * options.ranks * options.batch);
    std::sort(order.begin(), order.end());
    CHECK(std::adjacent_find(order.begin(), order.end()) == order.end());
  });
}

TEST_CASE("the_order_is_the_same_for_every_number_of_ranks") {
  for (const std::size_t size : sizes) {
    for (const Tail tail : {Tail::drop, Tail::pad}) {
      for (const bool shuffle : {true, false}) {
        std::vector<DistributedSampler> one =
            make_ranks({.samples = size, .ranks = 1, .batch = 12, .seed = 3, .shuffle = shuffle, .tail = tail});
        for (const std::size_t ranks : std::vector<std::size_t>{2, 3, 4, 6, 12}) {
          std::vector<DistributedSampler> many = make_ranks(
              {.samples = size, .ranks = ranks, .batch = 12 / ranks, .seed = 3, .shuffle = shuffle, .tail = tail});
          for (std::vector<DistributedSampler>* samplers : {&one, &many}) {
            for (DistributedSampler& rank : *samplers) rank.set_epoch(5);
          }
          std::vector<Sample> expected;
          do {
            expected = next_global(one);
            CHECK(next_global(many) == expected);
          } while (!expected.empty());
        }
      }
    }
  }
}

TEST_CASE("each_granule_has_the_same_samples_on_any_number_of_ranks") {
  for_each_granular_layout([](SamplerOptions options) {
    for (const std::size_t ranks : granular_rank_counts) {
      CAPTURE(ranks);
      options.ranks = ranks;
      std::vector<DistributedSampler> many = make_ranks(options);
      SamplerOptions apart = options;
      apart.ranks = granules;
      apart.granules = 0;
      std::vector<DistributedSampler> expected = make_ranks(apart);
      for (std::vector<DistributedSampler>* samplers : {&many, &expected}) {
        for (DistributedSampler& rank : *samplers) rank.set_epoch(2);
      }
      std::size_t steps = 0;
      for (std::vector<std::vector<Sample>> step; !(step = next_parts(expected)).empty(); ++steps) {
        CHECK(next_granules(many) == step);
        for (const DistributedSampler& rank : many) CHECK(rank.state() == expected[0].state());
      }
      CHECK(next_granules(many).empty());
      for (const DistributedSampler& rank : many) CHECK(rank.batches_per_epoch() == steps);
    }
  });
}

TEST_CASE("a_state_with_granules_moves_to_another_number_of_ranks_in_the_middle_of_an_epoch") {
  for_each_granular_layout([](SamplerOptions options) {
    for (const std::size_t before : granular_rank_counts) {
      for (const std::size_t after : std::vector<std::size_t>{1, 3, 5, 8, 12}) {
        options.ranks = before;
        std::vector<DistributedSampler> first = make_ranks(options);
        next_granules(first);
        options.ranks = after;
        std::vector<DistributedSampler> resumed = make_ranks(options);
        for (DistributedSampler& rank : resumed) rank.restore(first.back().state());
        std::vector<std::vector<Sample>> expected;
        do {
          expected = next_granules(first);
          CHECK(next_granules(resumed) == expected);
        } while (!expected.empty());
      }
    }
  });
}

TEST_CASE("a_short_step_has_its_samples_in_its_first_granules") {
  std::vector<DistributedSampler> five =
      make_ranks({.samples = 31, .ranks = 5, .batch = 2, .granules = granules, .seed = 1, .tail = Tail::pad});
  next_granules(five);
  std::vector<DistributedSampler> again = five;
  SampleBatch batch;
  REQUIRE(again[3].next(batch));
  CHECK(batch.global_samples == 7);
  CHECK(batch.weights == std::vector<float>{1, 0, 0, 0});  // granules 3 and 8
  REQUIRE(again[0].next(batch));
  CHECK(batch.weights == std::vector<float>{1, 1, 0, 0, 0, 0});  // granules 0, 5 and 10
}

TEST_CASE("set_epoch_reshuffles_and_the_same_epoch_comes_back") {
  std::vector<DistributedSampler> one = make_ranks({.samples = 101, .seed = 9});
  const std::vector<std::size_t> first = dealt(one);
  one[0].set_epoch(1);
  CHECK(dealt(one) != first);
  one[0].set_epoch(0);
  CHECK(dealt(one) == first);
  std::vector<DistributedSampler> other_seed = make_ranks({.samples = 101, .seed = 10});
  CHECK(dealt(other_seed) != first);
}

TEST_CASE("neighbouring_seeds_and_epochs_do_not_share_orders") {
  std::vector<std::vector<std::size_t>> orders;
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    std::vector<DistributedSampler> one = make_ranks({.samples = 31, .seed = seed});
    for (std::uint64_t epoch = 0; epoch < 8; ++epoch) {
      one[0].set_epoch(epoch);
      orders.push_back(dealt(one));
    }
  }
  std::sort(orders.begin(), orders.end());
  CHECK(std::adjacent_find(orders.begin(), orders.end()) == orders.end());
}

TEST_CASE("every_place_gets_every_sample_about_equally_often") {
  constexpr std::size_t size = 5;
  constexpr std::size_t epochs = 5000;
  std::vector<DistributedSampler> one = make_ranks({.samples = size, .seed = 1});
  std::vector<std::size_t> times(size * size, 0);
  for (std::uint64_t epoch = 0; epoch < epochs; ++epoch) {
    one[0].set_epoch(epoch);
    const std::vector<std::size_t> order = dealt(one);
    for (std::size_t place = 0; place < size; ++place) ++times[place * size + order[place]];
  }
  // 1000 expected, deviation 28: five deviations.
  CHECK(*std::min_element(times.begin(), times.end()) > 860);
  CHECK(*std::max_element(times.begin(), times.end()) < 1140);
}

TEST_CASE("without_shuffling_samples_come_in_order") {
  std::vector<DistributedSampler> ranks = make_ranks({.samples = 12, .ranks = 3, .batch = 2, .shuffle = false});
  CHECK(dealt(ranks) == std::vector<std::size_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11});
}

TEST_CASE("a_padded_batch_counts_its_real_samples_on_every_rank") {
  for (std::size_t rank = 0; rank < 3; ++rank) {
    DistributedSampler sampler({.samples = 7, .ranks = 3, .rank = rank, .batch = 2, .tail = Tail::pad});
    SampleBatch batch;
    REQUIRE(sampler.next(batch));
    CHECK(batch.global_samples == 6);
    REQUIRE(sampler.next(batch));
    CHECK(batch.global_samples == 1);
    CHECK_FALSE(sampler.next(batch));
  }
}

TEST_CASE("a_restored_sampler_continues_as_if_uninterrupted") {
  for_each_layout([](SamplerOptions options) {
    options.tail = Tail::pad;
    std::vector<DistributedSampler> ranks = make_ranks(options);
    for (DistributedSampler& rank : ranks) rank.set_epoch(3);
    for (int step = 0; step < 3; ++step) next_global(ranks);
    std::vector<DistributedSampler> resumed = make_ranks(options);
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) resumed[rank].restore(ranks[rank].state());
    std::vector<Sample> expected;
    do {
      expected = next_global(ranks);
      CHECK(next_global(resumed) == expected);
    } while (!expected.empty());
    CHECK(resumed[0].epoch() == 3);
  });
}

TEST_CASE("a_state_moves_to_another_number_of_ranks") {
  std::vector<DistributedSampler> one = make_ranks({.samples = 101, .ranks = 1, .batch = 6, .seed = 2});
  for (int step = 0; step < 4; ++step) next_global(one);
  std::vector<DistributedSampler> three = make_ranks({.samples = 101, .ranks = 3, .batch = 2, .seed = 2});
  for (DistributedSampler& rank : three) rank.restore(one[0].state());
  CHECK(dealt(three) == dealt(one));
}

TEST_CASE("states_of_other_data_are_refused") {
  DistributedSampler sampler({.samples = 10, .seed = 4});
  const SamplerState good = sampler.state();
  SamplerState bad = good;
  bad.samples = 11;
  CHECK_THROWS_AS(sampler.restore(bad), UsageError);
  bad = good;
  bad.seed = 5;
  CHECK_THROWS_AS(sampler.restore(bad), UsageError);
  bad = good;
  bad.position = 11;
  CHECK_THROWS_AS(sampler.restore(bad), UsageError);
  CHECK_NOTHROW(sampler.restore(good));
}

TEST_CASE("an_order_that_is_drawn_no_more_goes_on_at_the_ends_of_epochs_alone") {
  DistributedSampler sampler({.samples = 10, .seed = 4});
  SamplerState state = sampler.state();
  state.order = sampler_order - 1;
  CHECK_NOTHROW(sampler.restore(state));
  state.position = 3;
  CHECK_THROWS_WITH_AS(
      sampler.restore(state),
      "DistributedSampler: the state is 3 samples into an epoch of 10, in an order (version 1) that this "
      "version of Tessera draws no more (version 2): end that epoch with the version that began it",
      UsageError);
  state.position = 10;
  CHECK_NOTHROW(sampler.restore(state));
  CHECK(sampler.state().order == sampler_order);
}

TEST_CASE("a_sampler_does_not_go_on_in_the_middle_of_another_order") {
  DistributedSampler shuffled({.samples = 10, .seed = 4}), in_turn({.samples = 10, .seed = 4, .shuffle = false});
  const auto in_the_middle = [](const DistributedSampler& sampler) {
    SamplerState state = sampler.state();
    state.position = 3;
    return state;
  };
  CHECK_THROWS_WITH_AS(in_turn.restore(in_the_middle(shuffled)),
                       doctest::Contains("in a shuffled order, and this sampler does not"), UsageError);
  CHECK_THROWS_WITH_AS(shuffled.restore(in_the_middle(in_turn)),
                       doctest::Contains("in the data set's order, and this sampler shuffles"), UsageError);
  CHECK_NOTHROW(in_turn.restore(in_the_middle(in_turn)));
  CHECK_NOTHROW(in_turn.restore(shuffled.state()));  // between epochs
}

TEST_CASE("a_sampler_of_any_size_takes_no_memory_for_it") {
  constexpr std::size_t samples = std::size_t{1} << 60;
  const std::size_t before = allocations_so_far();
  DistributedSampler sampler({.samples = samples, .ranks = 3, .rank = 1, .batch = 4, .seed = 7});
  sampler.set_epoch(3);
  CHECK(allocations_so_far() == before);
  SampleBatch batch;
  REQUIRE(sampler.next(batch));
  for (const std::size_t index : batch.indices) CHECK(index < samples);
}

TEST_CASE("impossible_options_are_refused") {
  CHECK_THROWS_WITH_AS(DistributedSampler({.samples = 3, .ranks = 0}),
                       "DistributedSampler: ranks must be above 0, but is 0", UsageError);
  CHECK_THROWS_AS(DistributedSampler({.samples = 3, .batch = 0}), UsageError);
  CHECK_THROWS_WITH_AS(DistributedSampler({.samples = 3, .ranks = 2, .rank = 2}),
                       "DistributedSampler: rank must be below the 2 ranks, but is 2", UsageError);
  CHECK_THROWS_AS(DistributedSampler({.samples = 3, .ranks = 3, .batch = static_cast<std::size_t>(-1)}), UsageError);
  CHECK_THROWS_WITH_AS(DistributedSampler({.samples = 3, .batch = static_cast<std::size_t>(-1), .granules = 5}),
                       doctest::Contains("5 granules times a batch of"), UsageError);
  CHECK_THROWS_WITH_AS(DistributedSampler({.samples = 3, .ranks = 6, .granules = 5}),
                       "DistributedSampler: 6 ranks cannot share 5 granules: take at most as many ranks, or more "
                       "granules",
                       UsageError);
}

// Places are the model's.
TEST_CASE("granules_come_from_the_model_and_not_from_the_world") {
  tessera::launch({.ranks = 1}, [](tessera::World& world) {
    CHECK_THROWS_WITH_AS(DistributedSampler(world, {.samples = 30, .batch = 2, .granules = 5}),
                         doctest::Contains("give the model's granules() in place of the World"), UsageError);
  });
  const DistributedSampler sampler(tessera::Granules{5, 3, 2}, {.samples = 30, .batch = 2});
  CHECK(sampler.options().granules == 5);
  CHECK(sampler.options().ranks == 3);
  CHECK(sampler.options().rank == 2);
}
