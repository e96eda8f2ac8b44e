// Conformance: when collectives run. Concurrency, completion, and a host that is never blocked.
#include <algorithm>
#include <span>
#include <thread>

#include "conformance.hpp"
#include "property.hpp"
#include "tessera/base/error.hpp"

namespace tessera::conformance {
namespace {

constexpr std::size_t shard_elements = 257;

// One rank's buffers of a collective that is repeated with other values each time.
struct Repetition {
  Repetition(int rank_in, int ranks_in)
      : rank(rank_in),
        ranks(ranks_in),
        data(shard_elements * static_cast<std::size_t>(ranks_in)),
        result(shard_elements) {}

  std::size_t own_begin() const { return shard_elements * static_cast<std::size_t>(rank); }

  void fill_own_part(std::uint64_t round) {
    for (std::size_t i = 0; i < shard_elements; ++i) data[own_begin() + i] = test_value(rank, i, round);
  }
  void fill_all(std::uint64_t round) {
    for (std::size_t i = 0; i < data.size(); ++i) data[i] = test_value(rank, i, round);
  }
  void check_gathered(std::uint64_t round) const {
    for (std::size_t i = 0; i < data.size(); ++i) {
      const float expected = test_value(static_cast<int>(i / shard_elements), i % shard_elements, round);
      require(same_bits(data[i], expected), "all-gather, round {}, element {}", round, i);
    }
  }
  void check_reduced(std::uint64_t round) const {
    for (std::size_t i = 0; i < result.size(); ++i) {
      float expected = test_value(0, own_begin() + i, round);
      for (int other = 1; other < ranks; ++other) expected += test_value(other, own_begin() + i, round);
      require(same_bits(result[i], expected), "reduce-scatter, round {}, element {}", round, i);
    }
  }
  void overwrite() { std::fill(data.begin(), data.end(), 12345.0f); }

  AllGather all_gather() {
    return {.data = reinterpret_cast<std::byte*>(data.data()),
            .shard = Bytes(shard_elements * sizeof(float)),
            .label = "repeated gather"};
  }
  ReduceScatter reduce_scatter() {
    return {.data = reinterpret_cast<const std::byte*>(data.data()),
            .result = result.data(),
            .shard_elements = shard_elements,
            .label = "repeated sum"};
  }

  int rank;
  int ranks;
  Shared<float> data;
  Shared<float> result;
};

// Nothing here waits on the host: only the stream's order keeps the overwriting after the collective.
void enqueue_gathers(Communicator& communicator, Stream& stream, Repetition& buffers, std::uint64_t rounds) {
  for (std::uint64_t round = 0; round < rounds; ++round) {
    on_host(stream, [&buffers, round] { buffers.fill_own_part(round); });
    communicator.all_gather(stream, buffers.all_gather());
    on_host(stream, [&buffers, round] {
      buffers.check_gathered(round);
      buffers.overwrite();
    });
  }
}

void enqueue_sums(Communicator& communicator, Stream& stream, Repetition& buffers, std::uint64_t rounds) {
  for (std::uint64_t round = 0; round < rounds; ++round) {
    on_host(stream, [&buffers, round] { buffers.fill_all(round); });
    communicator.reduce_scatter(stream, buffers.reduce_scatter());
    on_host(stream, [&buffers, round] {
      buffers.check_reduced(round);
      buffers.overwrite();
    });
  }
}

std::uint64_t delay_seed(const World& world) { return 100 + static_cast<std::uint64_t>(world.rank()); }

}  // namespace

// Even and odd ranks enqueue in opposite orders: this ends only if the two communicators do not wait for each other.
void two_communicators_run_concurrently(World& world) {
  const auto gather = world.make_communicator("gather");
  const auto reduce = world.make_communicator("reduce");
  Repetition gathered(world.rank(), world.size());
  Repetition reduced(world.rank(), world.size());
  Stream gather_stream = queued_stream("gather");
  Stream reduce_stream = queued_stream("reduce");
  constexpr std::uint64_t rounds = 50;
  if (world.rank() % 2 == 0) {
    enqueue_gathers(*gather, gather_stream, gathered, rounds);
    enqueue_sums(*reduce, reduce_stream, reduced, rounds);
  } else {
    enqueue_sums(*reduce, reduce_stream, reduced, rounds);
    enqueue_gathers(*gather, gather_stream, gathered, rounds);
  }
  gather_stream.synchronize();
  reduce_stream.synchronize();
}

void buffers_may_be_reused_right_after_completion(World& world) {
  const auto communicator = world.make_communicator("reuse");
  Repetition gathered(world.rank(), world.size());
  Repetition reduced(world.rank(), world.size());
  Stream stream = queued_stream("reuse", delay_seed(world));
  constexpr std::uint64_t rounds = 100;
  enqueue_gathers(*communicator, stream, gathered, rounds);
  enqueue_sums(*communicator, stream, reduced, rounds);
  stream.synchronize();
}

void enqueue_never_blocks_the_host(World& world) {
  const auto communicator = world.make_communicator("gather");
  Repetition buffers(world.rank(), world.size());
  Stream stream = queued_stream("gather");
  world.barrier("start");
  if (world.rank() != 0) std::this_thread::sleep_for(std::chrono::milliseconds(300));
  const std::int64_t before = std::chrono::steady_clock::now().time_since_epoch().count();
  enqueue_gathers(*communicator, stream, buffers, 3);
  enqueue_sums(*communicator, stream, buffers, 3);
  communicator->barrier(stream, "end");
  const std::int64_t after = std::chrono::steady_clock::now().time_since_epoch().count();
  stream.synchronize();
  const std::int64_t mine = world.rank() == 0 ? after : before;
  const std::vector<std::byte> all = world.gather(std::as_bytes(std::span(&mine, 1)), "times");
  std::vector<std::int64_t> times(all.size() / sizeof(std::int64_t));
  std::memcpy(times.data(), all.data(), all.size());
  for (std::size_t rank = 1; rank < times.size(); ++rank) {
    require(times[0] < times[rank], "rank 0 has enqueued everything before any other rank began");
  }
}

void communicator_may_end_before_its_collectives_ran(World& world) {
  Repetition buffers(world.rank(), world.size());
  Stream stream = queued_stream("gather", delay_seed(world));
  enqueue_gathers(*world.make_communicator("short-lived"), stream, buffers, 5);
  stream.synchronize();
}

}  // namespace tessera::conformance
