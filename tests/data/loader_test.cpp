// The loader: the sampler's batches, filled ahead on a thread that ends whenever its owner does.
#include "tessera/data/loader.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <limits>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <vector>

#include "allocation_counter.hpp"
#include "tessera/base/error.hpp"

using namespace tessera;

namespace {

struct Indices {
  std::vector<std::size_t> values;
  std::uint64_t epoch = 0;
};

void copy_indices(const SampleBatch& chosen, Indices& batch) {
  batch.values = chosen.indices;
  batch.epoch = chosen.epoch;
}

SamplerOptions small() { return {.samples = 17, .ranks = 2, .rank = 1, .batch = 3, .seed = 5}; }

// Returns what the sampler deals by itself, over several epochs.
std::vector<std::vector<std::size_t>> expected_batches(std::size_t epochs) {
  DistributedSampler sampler(small());
  std::vector<std::vector<std::size_t>> result;
  for (std::uint64_t epoch = 0; epoch < epochs; ++epoch) {
    sampler.set_epoch(epoch);
    SampleBatch batch;
    while (sampler.next(batch)) result.push_back(batch.indices);
  }
  return result;
}

void sleep_a_little() { std::this_thread::sleep_for(std::chrono::microseconds(300)); }

}  // namespace

TEST_CASE("a_loader_gives_the_samplers_batches_epoch_after_epoch") {
  const std::vector<std::vector<std::size_t>> expected = expected_batches(5);
  for (const std::size_t depth : std::vector<std::size_t>{1, 2, 3, 50}) {
    for (const std::size_t keep : std::vector<std::size_t>{1, 2, 5}) {
      for (const std::size_t threads : std::vector<std::size_t>{1, 2, 5}) {
        Loader<Indices> loader(DistributedSampler(small()),
                               {.depth = depth, .keep = keep, .threads = threads, .epochs = 5}, copy_indices);
        for (const std::vector<std::size_t>& indices : expected) {
          const Indices* batch = loader.next();
          REQUIRE(batch != nullptr);
          CHECK(batch->values == indices);
        }
        CHECK(loader.next() == nullptr);
        CHECK(loader.next() == nullptr);
      }
    }
  }
}

TEST_CASE("several_threads_fill_at_once_and_batches_come_in_order") {
  std::mutex mutex;
  std::condition_variable both;
  int filling = 0;
  bool at_once = false;
  // The first fill waits for a second one, which ends first.
  Loader<Indices> loader(DistributedSampler(small()), {.depth = 3, .threads = 2},
                         [&](const SampleBatch& chosen, Indices& batch) {
                           copy_indices(chosen, batch);
                           std::unique_lock lock(mutex);
                           if (++filling == 1) {
                             at_once = both.wait_for(lock, std::chrono::seconds(20), [&] { return filling > 1; });
                           }
                           both.notify_all();
                         });
  for (const std::vector<std::size_t>& indices : expected_batches(3)) CHECK(loader.next()->values == indices);
  CHECK(at_once);
}

TEST_CASE("of_errors_of_several_threads_the_first_batch_s_surfaces_in_its_place") {
  for (int repetition = 0; repetition < 50; ++repetition) {
    const std::vector<std::vector<std::size_t>> expected = expected_batches(4);
    Loader<Indices> loader(DistributedSampler(small()), {.depth = 4, .threads = 4},
                           [&](const SampleBatch& chosen, Indices& batch) {
                             if (chosen.indices == expected[3]) {
                               sleep_a_little();  // so that the next one fails first
                               throw std::runtime_error("the fourth");
                             }
                             if (chosen.indices == expected[4]) throw std::runtime_error("the fifth");
                             copy_indices(chosen, batch);
                           });
    for (std::size_t good = 0; good < 3; ++good) CHECK(loader.next()->values == expected[good]);
    CHECK_THROWS_WITH_AS(loader.next(), "the fourth", std::runtime_error);
    CHECK_THROWS_WITH_AS(loader.next(), "the fourth", std::runtime_error);
  }
}

TEST_CASE("a_batch_stays_valid_for_as_many_calls_as_promised") {
  for (const std::size_t keep : std::vector<std::size_t>{1, 2, 3}) {
    Loader<Indices> loader(DistributedSampler(small()), {.depth = 2, .keep = keep}, copy_indices);
    std::vector<const Indices*> held;
    std::vector<std::vector<std::size_t>> contents;
    for (int step = 0; step < 40; ++step) {
      const Indices* batch = loader.next();
      held.push_back(batch);
      contents.push_back(batch->values);
      sleep_a_little();  // lets the thread overwrite what it may
      for (std::size_t back = 0; back < keep && back < held.size(); ++back) {
        CHECK(held[held.size() - 1 - back]->values == contents[contents.size() - 1 - back]);
      }
    }
  }
}

TEST_CASE("no_more_than_depth_batches_are_filled_ahead") {
  std::atomic<std::size_t> filled = 0;
  Loader<Indices> loader(DistributedSampler(small()), {.depth = 3, .keep = 2},
                         [&](const SampleBatch& chosen, Indices& batch) {
                           copy_indices(chosen, batch);
                           ++filled;
                         });
  for (std::size_t handed = 0; handed < 20; ++handed) {
    sleep_a_little();
    CHECK(filled <= handed + 3);
    loader.next();
  }
}

TEST_CASE("an_error_of_the_thread_surfaces_in_its_place_and_stays") {
  std::size_t calls = 0;
  Loader<Indices> loader(DistributedSampler(small()), {.depth = 4}, [&](const SampleBatch& chosen, Indices& batch) {
    if (++calls == 4) throw std::runtime_error("the disk is gone");
    copy_indices(chosen, batch);
  });
  for (int good = 0; good < 3; ++good) CHECK(loader.next() != nullptr);
  CHECK_THROWS_WITH_AS(loader.next(), "the disk is gone", std::runtime_error);
  CHECK_THROWS_WITH_AS(loader.next(), "the disk is gone", std::runtime_error);
}

TEST_CASE("a_loader_can_end_at_any_moment") {
  for (int taken = 0; taken < 30; ++taken) {
    Loader<Indices> loader(
        DistributedSampler(small()),
        {.depth = 1 + static_cast<std::size_t>(taken) % 3, .threads = 1 + static_cast<std::size_t>(taken) % 4},
        [&](const SampleBatch& chosen, Indices& batch) {
          if (taken % 2 == 0) sleep_a_little();
          copy_indices(chosen, batch);
        });
    for (int step = 0; step < taken; ++step) REQUIRE(loader.next() != nullptr);
  }
}

TEST_CASE("a_loader_that_continues_from_a_state_gives_the_rest") {
  const std::vector<std::vector<std::size_t>> expected = expected_batches(4);
  for (std::size_t cut = 0; cut <= expected.size(); ++cut) {
    Loader<Indices> before(DistributedSampler(small()), {.depth = 3, .epochs = 4}, copy_indices);
    for (std::size_t step = 0; step < cut; ++step) REQUIRE(before.next() != nullptr);
    DistributedSampler sampler(small());
    sampler.restore(before.state());
    Loader<Indices> after(sampler, {.depth = 2, .epochs = 4}, copy_indices);
    for (std::size_t step = cut; step < expected.size(); ++step) {
      const Indices* batch = after.next();
      REQUIRE(batch != nullptr);
      CHECK(batch->values == expected[step]);
    }
    CHECK(after.next() == nullptr);
  }
}

// Three ranks share 4 granules: the first has two in a step, the others one.
TEST_CASE("loaders_of_ranks_with_more_and_fewer_granules_go_on_on_other_ranks") {
  SamplerOptions options{.samples = 23, .ranks = 3, .batch = 2, .granules = 4, .seed = 5, .tail = Tail::pad};
  Loader<Indices> first(DistributedSampler(options), {.depth = 2}, copy_indices);
  for (int step = 0; step < 4; ++step) REQUIRE(first.next()->values.size() == 4);
  options.ranks = 1;
  DistributedSampler whole(options), expected(options);
  whole.restore(first.state());
  Loader<Indices> after(whole, {.depth = 3}, copy_indices);
  expected.set_epoch(1);
  SampleBatch batch;
  for (int step = 0; step < 2; ++step) REQUIRE(expected.next(batch));
  CHECK(after.next()->values == batch.indices);
  CHECK(after.next()->epoch == 1);
}

TEST_CASE("a_loader_without_batches_ends_or_is_refused") {
  const SamplerOptions too_few{.samples = 5, .ranks = 2, .batch = 3};
  CHECK_THROWS_WITH_AS(Loader<Indices>(DistributedSampler(too_few), {}, copy_indices),
                       "Loader: 5 samples make no whole batch of 2 ranks times 3: take a smaller batch, or pad",
                       UsageError);
  const SamplerOptions too_few_for_granules{.samples = 5, .ranks = 2, .batch = 2, .granules = 3};
  CHECK_THROWS_WITH_AS(Loader<Indices>(DistributedSampler(too_few_for_granules), {}, copy_indices),
                       "Loader: 5 samples make no whole batch of 3 granules times 2: take a smaller batch, or pad",
                       UsageError);
  Loader<Indices> ending(DistributedSampler(too_few), {.epochs = 2}, copy_indices);
  CHECK(ending.next() == nullptr);
  Loader<Indices> ending_late(DistributedSampler(too_few), {.epochs = std::numeric_limits<std::size_t>::max()},
                              copy_indices);
  CHECK(ending_late.next() == nullptr);
  Loader<Indices> no_epochs(DistributedSampler(small()), {.epochs = 0}, copy_indices);
  CHECK(no_epochs.next() == nullptr);
  CHECK_THROWS_AS(Loader<Indices>(DistributedSampler(small()), {.depth = 0}, copy_indices), UsageError);
  CHECK_THROWS_AS(Loader<Indices>(DistributedSampler(small()), {.keep = 0}, copy_indices), UsageError);
  CHECK_THROWS_AS(Loader<Indices>(DistributedSampler(small()), {.threads = 0}, copy_indices), UsageError);
}

TEST_CASE("a_warm_loader_allocates_nothing") {
  Loader<Indices> loader(DistributedSampler(small()), {.depth = 2, .keep = 2}, copy_indices);
  for (int step = 0; step < 20; ++step) loader.next();
  const std::size_t before = allocations_so_far();
  for (int step = 0; step < 200; ++step) loader.next();
  CHECK(allocations_so_far() == before);
}
