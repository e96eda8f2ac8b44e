// After construction, collectives allocate nothing, local or modelled. This is an executable of its own, because its
// operator new counts.
#include <doctest/doctest.h>

#include <vector>

#include "../data/allocation_counter.hpp"
#include "tessera/comm/run.hpp"
#include "tessera/comm/simulate.hpp"
#include "tessera/device/stream.hpp"

namespace {

using namespace tessera;

struct Buffers {
  explicit Buffers(std::size_t ranks) : data(ranks * shard), result(shard) {
    auto* const bytes = reinterpret_cast<std::byte*>(data.data());
    for (std::size_t segment = 0; segment < 3; ++segment) {
      std::byte* const part = bytes + segment * ranks * segment_elements * sizeof(float);
      gathers.push_back({.data = part, .shard = Bytes(segment_elements * sizeof(float)), .label = "f"});
      sums.push_back({.data = part,
                      .result = result.data() + segment * segment_elements,
                      .shard_elements = segment_elements,
                      .label = "g"});
    }
  }
  static constexpr std::size_t segment_elements = 43;
  static constexpr std::size_t shard = 129;
  std::vector<float> data;
  std::vector<float> result;
  std::vector<AllGather> gathers;  // three groups of segments fill data
  std::vector<ReduceScatter> sums;
};

void run_each_collective(Communicator& communicator, Stream& stream, Buffers& buffers) {
  auto* const bytes = reinterpret_cast<std::byte*>(buffers.data.data());
  communicator.all_gather(stream, {.data = bytes, .shard = Bytes(Buffers::shard * sizeof(float)), .label = "a"});
  communicator.reduce_scatter(
      stream, {.data = bytes, .result = buffers.result.data(), .shard_elements = Buffers::shard, .label = "b"});
  communicator.all_gather(stream, buffers.gathers);
  communicator.reduce_scatter(stream, buffers.sums);
  communicator.all_reduce(stream, {.data = buffers.data.data(), .elements = buffers.data.size(), .label = "c"});
  communicator.broadcast(stream, {.data = bytes, .size = Bytes(buffers.data.size() * sizeof(float)), .label = "d"});
  communicator.barrier(stream, "e");
  stream.synchronize();
}

}  // namespace

TEST_CASE("collectives_allocate_nothing_once_their_communicator_exists") {
  for (const int ranks : {1, 2, 5}) {
    std::size_t before = 0;
    std::size_t after = 0;
    launch({.ranks = ranks}, [&](World& world) {
      const auto communicator = world.make_communicator("gather");
      Stream stream(Device::cpu(), {.name = "gather"});
      Buffers buffers(static_cast<std::size_t>(ranks));
      run_each_collective(*communicator, stream, buffers);
      if (world.rank() == 0) before = allocations_so_far();
      // The barrier inside keeps every rank's first and last round apart from what rank 0 counts.
      for (int round = 0; round < 50; ++round) run_each_collective(*communicator, stream, buffers);
      if (world.rank() == 0) after = allocations_so_far();
      communicator->barrier(stream, "counted");
      stream.synchronize();
    });
    CHECK(after == before);
  }
}

TEST_CASE("collectives_of_an_imagined_job_allocate_nothing_once_their_communicator_exists") {
  simulate({.ranks = 5, .rank = 3}, [&](World& world) {
    const auto communicator = world.make_communicator("gather");
    Stream stream(Device::cpu(), {.name = "gather"});
    Buffers buffers(5);
    run_each_collective(*communicator, stream, buffers);
    const std::size_t before = allocations_so_far();
    for (int round = 0; round < 50; ++round) run_each_collective(*communicator, stream, buffers);
    CHECK(allocations_so_far() == before);
  });
}
