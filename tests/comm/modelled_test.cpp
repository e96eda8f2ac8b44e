// One real rank of an imagined job: what its collectives leave, how long they take, how it ends, and the conformance
// suite as far as it makes sense without peers.
#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "comm/modelled/modelled.hpp"
#include "conformance.hpp"
#include "property.hpp"
#include "tessera/base/error.hpp"
#include "tessera/comm/simulate.hpp"

using namespace tessera;
using conformance::queued_stream;
using conformance::seconds_since;

namespace {

constexpr float poison = std::numeric_limits<float>::quiet_NaN();

struct Rank {
  int ranks;
  int rank;
};
constexpr Rank some_ranks[] = {{1, 0}, {2, 1}, {3, 1}, {7, 0}, {7, 6}, {512, 17}, {16384, 16383}};

// Runs `collective(communicator, stream)` on that rank, and waits for it.
template <typename Collective>
void run_on(Rank place, Collective&& collective) {
  simulate({.ranks = place.ranks, .rank = place.rank}, [&](World& world) {
    const auto communicator = world.make_communicator("gather");
    Stream stream = queued_stream("gather");
    collective(*communicator, stream);
    stream.synchronize();
  });
}

std::byte* bytes_of(std::vector<float>& values) { return reinterpret_cast<std::byte*>(values.data()); }

}  // namespace

TEST_CASE("world_is_that_of_the_imagined_rank") {
  for (const Rank& place : some_ranks) {
    int calls = 0;
    simulate({.ranks = place.ranks, .rank = place.rank}, [&](World& world) {
      ++calls;
      CHECK(world.size() == place.ranks);
      CHECK(world.rank() == place.rank);
      CHECK(world.backend_name() == "modelled");
      CHECK(world.device() == Device::cpu());
      CHECK(world.threads() >= 1);
    });
    CHECK(calls == 1);
  }
}

TEST_CASE("host_conveniences_answer_as_if_all_ranks_said_the_same") {
  for (const Rank& place : some_ranks) {
    simulate({.ranks = place.ranks, .rank = place.rank}, [&](World& world) {
      CHECK(world.average(3.25f, "loss") == 3.25f);
      CHECK(world.sum(0.5, "samples") == 0.5 * place.ranks);
      const std::byte mine[] = {std::byte{3}, std::byte{141}};
      const std::vector<std::byte> all = world.gather(mine, "names");
      REQUIRE(all.size() == 2 * std::size_t(place.ranks));
      for (std::size_t i = 0; i < all.size(); ++i) REQUIRE(all[i] == mine[i % 2]);
      world.require_equal(42, "plan hash");
      world.barrier("end");
    });
  }
}

// The buffers hold NaN where a collective is to write: none may stay.
TEST_CASE("all_gather_leaves_zeros_beside_its_own_part") {
  for (const Rank& place : some_ranks) {
    for (const std::size_t shard : {std::size_t{0}, std::size_t{1}, std::size_t{131}}) {
      const std::size_t own = std::size_t(place.rank) * shard;
      std::vector<float> data(shard * std::size_t(place.ranks), poison);
      for (std::size_t i = 0; i < shard; ++i) data[own + i] = float(i) + 1;
      run_on(place, [&](Communicator& communicator, Stream& stream) {
        communicator.all_gather(stream,
                                {.data = bytes_of(data), .shard = Bytes(shard * sizeof(float)), .label = "parameters"});
      });
      for (std::size_t i = 0; i < data.size(); ++i) {
        REQUIRE(data[i] == (i >= own && i < own + shard ? float(i - own) + 1 : 0.0f));
      }
    }
  }
}

TEST_CASE("sums_are_this_ranks_own_values_divided") {
  for (const Rank& place : some_ranks) {
    constexpr std::size_t shard = 13;
    std::vector<float> data(shard * std::size_t(place.ranks)), result(shard, 5.0f);
    for (std::size_t i = 0; i < data.size(); ++i) data[i] = float(i % 97);
    const std::vector<float> before = data;
    const std::size_t own = std::size_t(place.rank) * shard;
    run_on(place, [&](Communicator& communicator, Stream& stream) {
      communicator.reduce_scatter(
          stream, {.data = bytes_of(data),
                   .result = result.data(),
                   .shard_elements = shard,
                   .accumulate = place.rank % 2 == 0 ? kernels::Accumulate::sum : kernels::Accumulate::terms,
                   .divisor = 4,
                   .label = "gradients"});
    });
    for (std::size_t i = 0; i < shard; ++i) REQUIRE(result[i] == (5.0f + before[own + i]) / 4);
    CHECK(data == before);
    run_on(place, [&](Communicator& communicator, Stream& stream) {
      communicator.all_reduce(stream, {.data = data.data(), .elements = data.size(), .divisor = 2, .label = "norm"});
      communicator.broadcast(stream, {.data = bytes_of(data), .size = Bytes(data.size() * 4), .label = "state"});
    });
    for (std::size_t i = 0; i < data.size(); ++i) REQUIRE(data[i] == before[i] / 2);
  }
}

TEST_CASE("modelled_time_is_that_of_a_ring") {
  const auto microseconds = [](const comm::Signature& signature, int ranks) {
    const CollectiveTime time{.latency = std::chrono::microseconds(5), .bytes_per_second = 1e9};
    return double(comm::duration_of(time, signature, ranks).count()) / 1000;
  };
  using comm::signature_of;
  const AllGather gather{.shard = Bytes(1'000'000), .label = "g"};
  CHECK(microseconds(signature_of(gather, 1), 8) == doctest::Approx(5 + 7000));
  CHECK(microseconds(signature_of(gather, 1), 1) == 0);
  const AllGather group[] = {gather, {.shard = Bytes(500'000), .label = "h"}};
  CHECK(microseconds(signature_of(std::span(group), 1), 8) == doctest::Approx(5 + 10500));
  const ReduceScatter scatter{.wire = DType::bf16, .shard_elements = 1'000'000, .label = "s"};
  CHECK(microseconds(signature_of(scatter, 1), 3) == doctest::Approx(5 + 4000));
  const AllReduce reduce{.elements = 250'000, .label = "r"};
  CHECK(microseconds(signature_of(reduce, 1), 4) == doctest::Approx(5 + 1500));
  const Broadcast broadcast{.size = Bytes(1'000'000), .label = "b"};
  CHECK(microseconds(signature_of(broadcast, 1), 4) == doctest::Approx(5 + 1000));
  CHECK(microseconds(signature_of(comm::Barrier{"end"}, 1), 4) == doctest::Approx(5));
  CHECK(comm::duration_of({}, signature_of(gather, 1), 8).count() == 0);
}

TEST_CASE("collectives_take_their_time_on_the_stream_and_none_of_the_hosts") {
  const CollectiveTime time{.latency = std::chrono::milliseconds(500)};
  simulate({.ranks = 4, .collectives = time}, [&](World& world) {
    const auto communicator = world.make_communicator("gather");
    Stream stream = queued_stream("gather");
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < 2; ++i) communicator->barrier(stream, "step");
    CHECK(seconds_since(start) < 0.5);
    stream.synchronize();
    CHECK(seconds_since(start) >= 1.0);
  });
}

TEST_CASE("abort_ends_a_collective_that_takes_long") {
  const CollectiveTime time{.latency = std::chrono::hours(1)};
  const auto start = std::chrono::steady_clock::now();
  const auto body = [](World& world) {
    const auto communicator = world.make_communicator("gather");
    Stream stream = queued_stream("gather");
    communicator->barrier(stream, "step");
    std::thread([&] { world.abort("disk full"); }).join();
    CHECK_THROWS_WITH_AS(stream.synchronize(), "rank 2 failed first: disk full", AbortedError);
    stream.synchronize();
  };
  CHECK_THROWS_WITH_AS(simulate({.ranks = 3, .rank = 2, .collectives = time}, body), "rank 2: disk full", AbortedError);
  CHECK(seconds_since(start) < 20);
}

TEST_CASE("two_streams_at_once_on_one_communicator_are_an_error") {
  const CollectiveTime time{.latency = std::chrono::seconds(20)};
  const auto body = [](World& world) {
    const auto communicator = world.make_communicator("gather");
    Stream first = queued_stream("first");
    Stream second = queued_stream("second");
    communicator->barrier(first, "a");
    communicator->barrier(second, "b");
    first.synchronize();
    second.synchronize();
  };
  CHECK_THROWS_AS(simulate({.ranks = 2, .collectives = time}, body), UsageError);
}

// Over all ranks of the job the gather would take ten minutes.
TEST_CASE("group_has_its_own_size_place_and_time") {
  const SimulateOptions options{.ranks = 16384, .rank = 9001, .collectives = {.bytes_per_second = 1e4}};
  simulate(options, [](World& world) {
    const Group group = world.mesh({{"replicate", 4096}, {"shard", 4}}).group("shard");
    const auto communicator = world.make_communicator("gather", {.group = group});
    CHECK(communicator->size() == 4);
    CHECK(communicator->rank() == 1);
    CHECK(communicator->name() == "gather over shard");
    std::vector<float> data(400, poison);
    for (std::size_t i = 100; i < 200; ++i) data[i] = 7;
    const auto start = std::chrono::steady_clock::now();
    Stream stream = queued_stream("gather");
    communicator->all_gather(stream, {.data = bytes_of(data), .shard = Bytes(400), .label = "parameters"});
    stream.synchronize();
    CHECK(seconds_since(start) >= 0.12);
    CHECK(seconds_since(start) < 60);
    for (std::size_t i = 0; i < data.size(); ++i) REQUIRE(data[i] == (i / 100 == 1 ? 7.0f : 0.0f));
  });
}

TEST_CASE("what_the_body_throws_comes_out_with_its_rank") {
  const auto fail = [](World&) { throw DataError("train.bin: empty"); };
  CHECK_THROWS_WITH_AS(simulate({.ranks = 512, .rank = 17}, fail), "rank 17: train.bin: empty", DataError);
  CHECK_THROWS_WITH_AS(simulate({}, fail), "train.bin: empty", DataError);
}

TEST_CASE("options_out_of_range_are_named_before_the_body_runs") {
  const auto never = [](World&) { FAIL("the body must not run"); };
  CHECK_THROWS_AS(simulate({.ranks = 0}, never), UsageError);
  CHECK_THROWS_AS(simulate({.ranks = (1 << 20) + 1}, never), UsageError);
  CHECK_THROWS_AS(simulate({.ranks = 4, .rank = 4}, never), UsageError);
  CHECK_THROWS_AS(simulate({.ranks = 4, .rank = -1}, never), UsageError);
  CHECK_THROWS_AS(simulate({.collectives = {.latency = std::chrono::nanoseconds(-1)}}, never), UsageError);
  CHECK_THROWS_AS(simulate({.collectives = {.bytes_per_second = -1.0}}, never), UsageError);
  CHECK_THROWS_AS(simulate({.timeout = std::chrono::milliseconds(0)}, never), UsageError);
  CHECK_THROWS_AS(simulate({.threads = 0}, never), UsageError);
}

// ---- the conformance suite ----
//
// Alone in its job, a rank owes every property. In a job of several it has no peers; what does not make sense then, and
// why:
//
// - Properties that compare with the peers' values, which are not there: reduce_scatter_results_…, grouped_…,
//   redistribution_moves_what_the_list_says, host_conveniences_agree, two_communicators_run_concurrently,
//   buffers_may_be_reused, enqueue_never_blocks_the_host, stream_that_meets_peers_…, communicator_may_end_…,
//   groups_gather_…, groups_sum_…, groups_reduce_…, groups_broadcast_…, large_data_…, groups_wait_for_none_…,
//   rows_and_columns_…. What stands in their place is above.
//
// - require_equal_names_ranks_and_values, disagreement_…, rank_that_…, rank_of_a_group_…: there is nobody who could say
//   something else, not come, or leave.

namespace {

using Property = void (*)(World&);

// Says what went wrong on the rank. A world that the property itself made fail leaves nothing.
std::optional<std::string> violation(const SimulateOptions& options, Property property) {
  std::optional<std::string> text;
  try {
    simulate(options, [&](World& world) {
      try {
        property(world);
      } catch (const std::exception& error) {
        text = error.what();
        throw;
      }
    });
  } catch (const std::exception&) {
    // Its text is there, unless the property meant the world to fail.
  }
  return text;
}

void check_alone(Property property, int least_ranks, int timeout) {
  if (least_ranks > 1) return;
  CHECK(violation({.timeout = std::chrono::milliseconds(timeout)}, property).value_or("") == "");
}

// The properties that end a world do so on the first rank or on the last.
void check_in_jobs(Property property, bool first) {
  for (int ranks = 1; ranks <= 8; ++ranks) {
    CAPTURE(ranks);
    CHECK(violation({.ranks = ranks, .rank = first ? 0 : ranks - 1}, property).value_or("") == "");
  }
}

}  // namespace

#define TESSERA_MODELLED_PROPERTY(name, least_ranks, timeout) \
  TEST_CASE("modelled, alone: " #name) { check_alone(conformance::name, least_ranks, timeout); }
TESSERA_CONFORMANCE_PROPERTIES(TESSERA_MODELLED_PROPERTY)

#define TESSERA_WITHOUT_PEERS(name, ...)                                          \
  TEST_CASE("modelled, without its peers: " #name) {                              \
    for (const bool flag : {__VA_ARGS__}) check_in_jobs(conformance::name, flag); \
  }
TESSERA_WITHOUT_PEERS(misuse_is_an_error_at_the_call, false, true)
TESSERA_WITHOUT_PEERS(misuse_in_a_group_names_the_segment, false, true)
TESSERA_WITHOUT_PEERS(groups_have_their_sizes_and_places, false, true)
TESSERA_WITHOUT_PEERS(misuse_of_a_group_is_an_error_at_the_call, false)
TESSERA_WITHOUT_PEERS(nobody_passes_a_barrier_before_all_have_come, false)
TESSERA_WITHOUT_PEERS(abort_reaches_every_wait_with_the_first_cause, false)
TESSERA_WITHOUT_PEERS(memory_may_be_freed_right_after_a_failure, true)
