// Conformance: when collectives run. Concurrency, completion, and a host that is never blocked.
#include <algorithm>
#include <numeric>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "conformance.hpp"
#include "property.hpp"
#include "tessera/base/error.hpp"

namespace tessera::conformance {
namespace {

constexpr std::size_t shard_elements = 257;

// One rank's buffers of a collective that is repeated with other values each time, among ranks of the job by place.
struct Repetition {
  Repetition(int place, std::vector<int> ranks_in)
      : ranks(std::move(ranks_in)),
        own_begin(shard_elements * static_cast<std::size_t>(place)),
        own_rank(ranks[static_cast<std::size_t>(place)]),
        data(shard_elements * ranks.size()),
        result(shard_elements) {}
  explicit Repetition(const World& world) : Repetition(world.rank(), everybody(world)) {}
  explicit Repetition(const Group& group) : Repetition(group.place(), group.ranks()) {}

  static std::vector<int> everybody(const World& world) {
    std::vector<int> ranks(static_cast<std::size_t>(world.size()));
    std::iota(ranks.begin(), ranks.end(), 0);
    return ranks;
  }

  void fill_own_part(std::uint64_t round) {
    for (std::size_t i = 0; i < shard_elements; ++i) data[own_begin + i] = test_value(own_rank, i, round);
  }
  void fill_all(std::uint64_t round) {
    for (std::size_t i = 0; i < data.size(); ++i) data[i] = test_value(own_rank, i, round);
  }
  void check_gathered(std::uint64_t round) const {
    for (std::size_t i = 0; i < data.size(); ++i) {
      const float expected = test_value(ranks[i / shard_elements], i % shard_elements, round);
      require(same_bits(data[i], expected), "all-gather, round {}, element {}", round, i);
    }
  }
  void check_reduced(std::uint64_t round) const {
    for (std::size_t i = 0; i < result.size(); ++i) {
      float expected = test_value(ranks[0], own_begin + i, round);
      for (std::size_t place = 1; place < ranks.size(); ++place) {
        expected += test_value(ranks[place], own_begin + i, round);
      }
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

  std::vector<int> ranks;
  std::size_t own_begin;
  int own_rank;
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

struct Repeated {
  std::unique_ptr<Communicator> communicator;
  Repetition buffers;
  Stream stream;
};

Repeated repeated(World& world, const char* name, const std::optional<Group>& group = std::nullopt) {
  return {world.make_communicator(name, {.group = group}), group ? Repetition(*group) : Repetition(world),
          queued_stream(name)};
}

// Even and odd ranks enqueue in opposite orders: this ends only if the two communicators do not wait for each other.
void run_crosswise(const World& world, Repeated& gathered, Repeated& reduced, std::uint64_t rounds) {
  const auto gathers = [&] { enqueue_gathers(*gathered.communicator, gathered.stream, gathered.buffers, rounds); };
  const auto sums = [&] { enqueue_sums(*reduced.communicator, reduced.stream, reduced.buffers, rounds); };
  if (world.rank() % 2 == 0) {
    gathers();
    sums();
  } else {
    sums();
    gathers();
  }
  gathered.stream.synchronize();
  reduced.stream.synchronize();
}

std::uint64_t delay_seed(const World& world) { return 100 + static_cast<std::uint64_t>(world.rank()); }

}  // namespace

void two_communicators_run_concurrently(World& world) {
  Repeated gathered = repeated(world, "gather");
  Repeated reduced = repeated(world, "reduce");
  run_crosswise(world, gathered, reduced, 50);
}

// Gathers in the rows of every mesh, sums in its columns.
void rows_and_columns_run_concurrently(World& world) {
  for (int rows = 1; rows <= world.size(); ++rows) {
    if (world.size() % rows != 0) continue;
    const Mesh mesh = world.mesh({{"replicate", rows}, {"shard", world.size() / rows}});
    Repeated gathered = repeated(world, "gather", mesh.group("shard"));
    Repeated reduced = repeated(world, "reduce", mesh.group("replicate"));
    run_crosswise(world, gathered, reduced, 20);
  }
}

void buffers_may_be_reused_right_after_completion(World& world) {
  const auto communicator = world.make_communicator("reuse");
  Repetition gathered(world);
  Repetition reduced(world);
  Stream stream = queued_stream("reuse", delay_seed(world));
  constexpr std::uint64_t rounds = 100;
  enqueue_gathers(*communicator, stream, gathered, rounds);
  enqueue_sums(*communicator, stream, reduced, rounds);
  stream.synchronize();
}

void enqueue_never_blocks_the_host(World& world) {
  const auto communicator = world.make_communicator("gather");
  Repetition buffers(world);
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
  const std::vector<std::int64_t> times = gather_times(world, std::span(&mine, 1));
  for (std::size_t rank = 1; rank < times.size(); ++rank) {
    require(times[0] < times[rank], "rank 0 has enqueued everything before any other rank began");
  }
}

// When the call returns, the host has met its peers and, on a CPU, has the result.
void stream_that_meets_peers_runs_collectives_at_the_call(World& world) {
  const auto communicator = world.make_communicator("reduce");
  Repetition buffers(world);
  Stream stream(device_in_use(), {.name = "reduce", .mode = StreamMode::immediate, .meets_peers = true});
  const auto complete = [&stream] {
    if (stream.device().kind() != DeviceKind::cpu) stream.synchronize();
  };
  for (std::uint64_t round = 0; round < 20; ++round) {
    buffers.fill_own_part(round);
    communicator->all_gather(stream, buffers.all_gather());
    complete();
    buffers.check_gathered(round);
    buffers.fill_all(round);
    communicator->reduce_scatter(stream, buffers.reduce_scatter());
    complete();
    buffers.check_reduced(round);
  }
  stream.synchronize();
}

void communicator_may_end_before_its_collectives_ran(World& world) {
  Repetition buffers(world);
  Stream stream = queued_stream("gather", delay_seed(world));
  enqueue_gathers(*world.make_communicator("short-lived"), stream, buffers, 5);
  stream.synchronize();
}

}  // namespace tessera::conformance
