// Arenas, where peers read directly, against the same calls on memory that goes through staging areas.
#include "process_properties.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <span>
#include <thread>

#include "property.hpp"
#include "tessera/base/error.hpp"

namespace tessera::conformance {
namespace {

constexpr std::size_t counts[] = {0, 1, 3, 127, 1009, 300'007};

// One rank's buffers, in an arena or not.
class Memory {
 public:
  Memory(World& world, Bytes size, bool in_arena)
      : arena_(in_arena ? world.make_arena(size) : Arena(Device::cpu(), Bytes(0))),
        heap_(in_arena ? 0 : size.count()),
        data_(in_arena ? arena_.data() : heap_.data()) {}
  std::byte* take(std::size_t bytes) {
    std::byte* const begin = data_ + used_;
    used_ += round_up(bytes, 64);
    return begin;
  }
  template <typename Element>
  Element* take_of(std::size_t count) {
    return reinterpret_cast<Element*>(take(count * sizeof(Element)));
  }

 private:
  Arena arena_;
  std::vector<std::byte> heap_;
  std::byte* data_;
  std::size_t used_ = 0;
};

void fill(World& world, std::span<float> values, std::uint64_t seed) {
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = test_value(world.rank(), i, seed);
}

// A rank has these results after every kind of collective on `count` elements per rank.
struct Results {
  std::vector<float> gathered, reduced, summed, copied;
  friend bool operator==(const Results&, const Results&) = default;
};

Results run_each(World& world, Communicator& communicator, std::size_t count, Memory memory) {
  const std::size_t all = count * static_cast<std::size_t>(communicator.size());
  const std::size_t own = count * static_cast<std::size_t>(communicator.rank());
  auto* const gathered = memory.take_of<float>(all);
  auto* const gradients = memory.take_of<float>(all);
  auto* const reduced = memory.take_of<float>(count);
  auto* const summed = memory.take_of<float>(count);
  auto* const copied = memory.take_of<float>(count);
  fill(world, {gathered + own, count}, 1);
  fill(world, {gradients, all}, 2);
  fill(world, {reduced, count}, 3);
  fill(world, {summed, count}, 4);
  fill(world, {copied, count}, 5);
  Stream stream = queued_stream("each");
  communicator.all_gather(
      stream,
      {.data = reinterpret_cast<std::byte*>(gathered), .shard = Bytes(count * sizeof(float)), .label = "gathered"});
  communicator.reduce_scatter(stream, {.data = reinterpret_cast<std::byte*>(gradients),
                                       .result = reduced,
                                       .shard_elements = count,
                                       .accumulate = kernels::Accumulate::terms,
                                       .divisor = 3,
                                       .label = "reduced"});
  communicator.all_reduce(stream, {.data = summed, .elements = count, .divisor = 7, .label = "summed"});
  communicator.broadcast(stream, {.data = reinterpret_cast<std::byte*>(copied),
                                  .size = Bytes(count * sizeof(float)),
                                  .root = communicator.size() - 1,
                                  .label = "copied"});
  stream.synchronize();
  return {{gathered, gathered + all}, {reduced, reduced + count}, {summed, summed + count}, {copied, copied + count}};
}

Results run_each(World& world, Communicator& communicator, std::size_t count, bool in_arena) {
  const std::size_t all = count * static_cast<std::size_t>(communicator.size());
  return run_each(world, communicator, count, Memory(world, Bytes((2 * all + 3 * count) * 4 + 4096), in_arena));
}

// Bytes of this process's mappings of communicators' memory that exist.
std::size_t resident_bytes_of_communicators() {
  std::ifstream maps("/proc/self/smaps");
  std::size_t kibibytes = 0;
  bool ours = false;
  for (std::string line; std::getline(maps, line);) {
    if (line.find("/memfd:") != std::string::npos || line.find("-") < line.find(":")) {
      ours = line.find("/memfd:tessera-communicator") != std::string::npos;
    }
    if (ours && line.rfind("Rss:", 0) == 0) kibibytes += std::stoul(line.substr(4));
  }
  return kibibytes * 1024;
}

// Collective over all ranks.
bool on_one_host(World& world, std::span<const int> ranks) {
  char name[256] = {};
  ::gethostname(name, sizeof(name) - 1);
  const std::vector<std::byte> all = world.gather(std::as_bytes(std::span(name)), "host");
  return std::all_of(ranks.begin(), ranks.end(), [&](int rank) {
    return std::memcmp(all.data() + static_cast<std::size_t>(rank) * sizeof(name), name, sizeof(name)) == 0;
  });
}

// The rows and columns of every mesh of two axes, and all ranks in another order.
std::vector<Group> lines(const World& world) {
  std::vector<Group> all;
  for (int rows = 1; rows <= world.size(); ++rows) {
    if (world.size() % rows != 0) continue;
    const Mesh mesh = world.mesh({{"replicate", rows}, {"shard", world.size() / rows}});
    all.push_back(mesh.group("shard"));
    all.push_back(mesh.group("replicate"));
    all.push_back(mesh.group_of({"shard", "replicate"}));
  }
  return all;
}

// A bounded part of a communicator's pages exists after its ranks have read each other's arenas, and far more once they
// read other memory.
void check_needs_no_staging(World& world, Communicator& communicator) {
  world.barrier("made");
  const std::size_t before = resident_bytes_of_communicators();
  run_each(world, communicator, 300'007, true);
  const std::size_t after = resident_bytes_of_communicators();
  const auto ranks = static_cast<std::size_t>(communicator.size());
  require(before > 0 && after <= before + 65536 * ranks, "{} bytes, then {}", before, after);
  run_each(world, communicator, 300'007, false);
  require(ranks == 1 || resident_bytes_of_communicators() > after + 1'000'000, "staging is seen where it is");
}

}  // namespace

// --simulate-backend mpi imitates this for a job on one host.
void arenas_need_no_staging_on_one_host(World& world) {
  if (!on_one_host(world, world.mesh({{"all", world.size()}}).group("all").ranks())) return;
  const auto communicator = world.make_communicator("each");
  check_needs_no_staging(world, *communicator);
}

// Also where the job has several hosts.
void arenas_of_a_group_on_one_host_need_no_staging(World& world) {
  for (const Group& group : lines(world)) {
    const auto communicator = world.make_communicator("each", {.group = group});
    if (on_one_host(world, group.ranks())) {
      check_needs_no_staging(world, *communicator);
    } else {
      world.barrier("made");
    }
    world.barrier("seen");
  }
}

void arenas_give_the_bits_of_other_memory_in_groups(World& world) {
  for (const Group& group : lines(world)) {
    const auto communicator = world.make_communicator("each", {.group = group});
    for (const std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{1009}, std::size_t{150'001}}) {
      const Results staged = run_each(world, *communicator, count, false);
      const Results direct = run_each(world, *communicator, count, true);
      require(staged == direct, "{}: {} elements", group.text(), count);
    }
  }
}

void arenas_give_the_bits_of_other_memory(World& world) {
  const auto communicator = world.make_communicator("each");
  for (const std::size_t count : counts) {
    const Results staged = run_each(world, *communicator, count, false);
    const Results direct = run_each(world, *communicator, count, true);
    require(staged == direct, "{} elements", count);
  }
}

void one_rank_without_an_arena_changes_no_bit(World& world) {
  const auto communicator = world.make_communicator("each");
  for (const std::size_t count : counts) {
    const Results direct = run_each(world, *communicator, count, true);
    const Results mixed = run_each(world, *communicator, count, world.rank() != 1);
    require(mixed == direct, "{} elements", count);
  }
}

void arenas_may_end_and_begin_between_collectives(World& world) {
  const auto communicator = world.make_communicator("each");
  const Results first = run_each(world, *communicator, 1009, true);
  Arena other = world.make_arena(Bytes(8192 * static_cast<std::uint64_t>(world.rank() + 1)));
  for (int round = 0; round < 100; ++round) {  // more than a rank has at a time
    require(run_each(world, *communicator, 1009, true) == first, "round {}", round);
  }
}

void arena_is_zero_and_whole_pages(World& world) {
  Arena arena = world.make_arena(Bytes(5000));
  require(arena.size() == Bytes(8192), "whole pages, {} bytes", arena.size().count());
  for (const std::byte value : arena.range(Bytes(0), arena.size())) require(value == std::byte{0}, "zeros");
  require(world.make_arena(Bytes(0)).data() == nullptr, "an arena of no bytes");
  text_of_expected<MemoryError>([&] { world.make_arena(Bytes(std::uint64_t{1} << 62)); });
  text_of_expected<MemoryError>([&] { world.make_arena(Bytes(~std::uint64_t{0})); });
}

void more_segments_than_a_bucket_ever_has(World& world) {
  const auto communicator = world.make_communicator("gather");
  const auto ranks = static_cast<std::size_t>(world.size());
  constexpr std::size_t segments = 3001;
  Arena arena = world.make_arena(Bytes(segments * ranks));
  std::vector<AllGather> group;
  for (std::size_t i = 0; i < segments; ++i) {
    std::byte* const data = arena.data() + i * ranks;
    data[world.rank()] = test_byte(world.rank(), i);
    group.push_back({.data = data, .shard = Bytes(1), .label = "small"});
  }
  Stream stream = queued_stream("gather");
  communicator->all_gather(stream, group);
  stream.synchronize();
  for (std::size_t i = 0; i < segments * ranks; ++i) {
    require(arena.data()[i] == test_byte(static_cast<int>(i % ranks), i / ranks), "byte {}", i);
  }
}

// The communicator goes on, with a stream that has not failed.
void call_too_long_to_describe_is_refused_and_no_more(World& world) {
  const auto communicator = world.make_communicator("gather");
  const std::string label(std::size_t{5} << 20, 'x');
  {
    Stream stream = queued_stream("gather");
    const std::string text = text_of_expected<UsageError>([&] {
      communicator->barrier(stream, label);
      stream.synchronize();
    });
    require_contains(text, "has 1 segments, which take 52429");
  }
  Stream stream = queued_stream("gather, again");
  communicator->barrier(stream, "afterwards");
  stream.synchronize();
}

void labels_that_differ_at_their_ends_disagree(World& world) {
  const auto communicator = world.make_communicator("gather");
  Stream stream = queued_stream("gather");
  const std::string label = std::string(300, 'x') + (world.rank() == 0 ? "a" : "b");
  text_of_expected<CommunicationError>([&] {
    communicator->barrier(stream, label);
    stream.synchronize();
  });
}

// Beyond what an int counts, in one part and in the whole; in an arena on one host, else through staging areas.
void more_than_two_gibibytes_travel(World& world) {
  const auto communicator = world.make_communicator("large");
  Stream stream = queued_stream("large");
  const std::size_t size = (std::size_t{1} << 31) + 4099;
  const std::size_t places[] = {0, 1, (std::size_t{1} << 31) - 1, std::size_t{1} << 31, size - 1};
  Arena arena = world.make_arena(Bytes(size));
  if (world.rank() == 1) {
    for (const std::size_t place : places) arena.data()[place] = test_byte(1, place);
  }
  communicator->broadcast(stream, {.data = arena.data(), .size = Bytes(size), .root = 1, .label = "large"});
  stream.synchronize();
  for (const std::size_t place : places) require(arena.data()[place] == test_byte(1, place), "broadcast, {}", place);
  const std::size_t shard = size / static_cast<std::size_t>(world.size());
  const std::size_t own = static_cast<std::size_t>(world.rank()) * shard;
  arena.data()[own + shard - 1] = test_byte(world.rank(), 7);
  communicator->all_gather(stream, {.data = arena.data(), .shard = Bytes(shard), .label = "large"});
  stream.synchronize();
  for (int rank = 0; rank < world.size(); ++rank) {
    const std::size_t last = (static_cast<std::size_t>(rank) + 1) * shard - 1;
    require(arena.data()[last] == test_byte(rank, 7), "all-gather, the part of rank {}", rank);
  }
}

// It has posted what it will do, and does not do it: as a process that is stopped while it copies.
void rank_that_stops_in_the_middle_is_named(World& world) {
  const auto communicator = world.make_communicator("gather");
  Stream stream = queued_stream("gather");
  const std::size_t shard = 9'000'000;
  std::vector<std::byte> data(shard * static_cast<std::size_t>(world.size()));
  communicator->barrier(stream, "start");
  stream.synchronize();
  if (world.rank() == 0) {
    while (!world.aborted()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return;
  }
  const std::string text = text_of_expected<Error>([&] {
    communicator->all_gather(stream, {.data = data.data(), .shard = Bytes(shard), .label = "blocks.3"});
    stream.synchronize();
  });
  require_contains(text, "for rank 0");
  require_contains(text, "blocks.3");
}

}  // namespace tessera::conformance
