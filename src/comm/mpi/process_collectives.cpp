// The mpi backend's collectives: one rank's part of each, on its stream's thread, which blocks until all ranks have
// done theirs.
//
// What each rank reads and writes. Directly: as among threads, a rank reads its peers' arenas. Staged, where some
// rank's data cannot be reached: in rounds, each of which all ranks first put into their staging areas and then read.
// Rounds cut data between elements, so sums have the same bits either way.
#include <algorithm>
#include <cstring>
#include <exception>
#include <memory>
#include <span>

#include "comm/direct_collectives.hpp"
#include "comm/mpi/process_group.hpp"
#include "comm/slices.hpp"
#include "comm/task_communicator.hpp"
#include "tessera/kernels/reduce.hpp"

namespace tessera::comm {
namespace {

using shared::staging_bytes;

struct ProcessCall {
  std::shared_ptr<ProcessGroup> group;
  Signature signature;
};

void copy_bytes(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}

// This rank once it has met its peers: a Reader (direct_collectives.hpp), whose group has the staging areas.
struct ProcessReader {
  ProcessGroup& group;
  int place() const { return group.place(); }
  int size() const { return group.size(); }
  const std::byte* data_of(int place, std::size_t segment) const { return group.data_of(place, segment); }
  std::span<const void*> scratch() const { return group.scratch(); }
  void copy(std::byte* to, const std::byte* from, std::size_t bytes) const { std::memcpy(to, from, bytes); }
  void sum(const kernels::RankedSum& of) const { kernels::ranked_sum_cpu(of); }
};

// A part of `whole` things for each of several rounds of at most `most`.
struct Round {
  std::size_t index;
  std::size_t begin;
  std::size_t count;
};
template <typename Function>
void for_each_round(std::size_t whole, std::size_t most, Function&& function) {
  for (Round round{0, 0, 0}; round.begin < whole; round.begin += most, ++round.index) {
    round.count = std::min(most, whole - round.begin);
    function(round);
  }
}

template <typename Direct, typename Staged>
void meet(const ProcessCall& call, const std::byte* data, const Direct& direct, const Staged& staged) {
  ProcessGroup& group = *call.group;
  const ProcessReader reader{group};
  group.enter(call.signature, data);
  try {
    group.is_direct() ? direct(reader) : staged(reader);
  } catch (...) {
    group.fail(std::current_exception());
    throw;
  }
  group.finish();
}

// ---- all-gather ----

void gather_staged(const ProcessReader& reader, const AllGather& operation, std::size_t first_round) {
  ProcessGroup& group = reader.group;
  const std::size_t shard = operation.shard.count();
  const std::size_t own = static_cast<std::size_t>(group.place()) * shard;
  for_each_round(shard, staging_bytes, [&](const Round& round) {
    const std::size_t area = first_round + round.index;
    copy_bytes(group.staging(group.place(), area), operation.data + own + round.begin, round.count);
    group.regroup({.bytes = round.count, .round = area});
    for_each_peer(group.place(), group.size(), [&](int peer) {
      std::byte* const to = operation.data + static_cast<std::size_t>(peer) * shard + round.begin;
      copy_bytes(to, group.staging(peer, area), round.count);
    });
  });
}

// ---- reduce-scatter ----

void sum(const ReduceScatter& operation, std::span<const void* const> all, const Round& part) {
  kernels::ranked_sum_cpu({.contributions = all,
                           .type = operation.wire,
                           .result = operation.result + part.begin,
                           .count = part.count,
                           .accumulate = operation.accumulate,
                           .divisor = operation.divisor});
}

// An area holds a piece for each rank, one after the other.
std::size_t elements_for_each(const ProcessGroup& group, std::size_t element_bytes) {
  constexpr std::size_t lanes = 32;
  return std::max(lanes, staging_bytes / static_cast<std::size_t>(group.size()) / element_bytes / lanes * lanes);
}

void scatter_staged(const ProcessReader& reader, const ReduceScatter& operation, std::size_t first_round) {
  ProcessGroup& group = reader.group;
  const std::size_t element = size_of(operation.wire).count();
  const std::size_t shard = operation.shard_elements * element;
  const std::size_t most = elements_for_each(group, element);
  const auto me = static_cast<std::size_t>(group.place());
  for_each_round(operation.shard_elements, most, [&](const Round& round) {
    const std::size_t area = first_round + round.index;
    const std::size_t begin = round.begin * element;
    const std::size_t bytes = round.count * element;
    const std::size_t stride = most * element;
    for_each_peer(group.place(), group.size(), [&](int peer) {
      const auto to = static_cast<std::size_t>(peer);
      copy_bytes(group.staging(group.place(), area) + to * stride, operation.data + to * shard + begin, bytes);
    });
    group.regroup({.bytes = bytes, .stride = stride, .round = area});
    sum(operation,
        contributions(reader, operation.data + me * shard + begin,
                      [&](int place) { return group.staging(place, area) + me * stride; }),
        round);
  });
}

// Rounds of all segments count on, so that two that follow each other never use one area.
std::size_t rounds_of(const ProcessGroup&, const AllGather& operation) {
  return (operation.shard.count() + staging_bytes - 1) / staging_bytes;
}
std::size_t rounds_of(const ProcessGroup& group, const ReduceScatter& operation) {
  const std::size_t most = elements_for_each(group, size_of(operation.wire).count());
  return (operation.shard_elements + most - 1) / most;
}

template <typename Operation, typename Direct, typename Staged>
void meet_in_segments(const ProcessCall& call, std::span<const Operation> segments, const Direct& direct,
                      const Staged& staged) {
  meet(
      call, segments.front().data,
      [&](const ProcessReader& reader) {
        for (std::size_t segment = 0; segment < segments.size(); ++segment) direct(reader, segments[segment], segment);
      },
      [&](const ProcessReader& reader) {
        std::size_t rounds = 0;
        for (const Operation& segment : segments) {
          staged(reader, segment, rounds);
          rounds += rounds_of(reader.group, segment);
        }
      });
}

// ---- all-reduce ----

void sum(const AllReduce& operation, std::span<const void* const> all, const Round& part) {
  kernels::ranked_sum_cpu(
      {.contributions = all, .result = operation.data + part.begin, .count = part.count, .divisor = operation.divisor});
}

// Every rank sums everything: what travels is the same, and no second exchange is needed.
void reduce_staged(const ProcessReader& reader, const AllReduce& operation) {
  ProcessGroup& group = reader.group;
  for_each_round(operation.elements, staging_bytes / sizeof(float), [&](const Round& round) {
    const std::size_t bytes = round.count * sizeof(float);
    const auto* const own = reinterpret_cast<const std::byte*>(operation.data + round.begin);
    copy_bytes(group.staging(group.place(), round.index), own, bytes);
    group.regroup({.bytes = bytes, .round = round.index});
    sum(operation, contributions(reader, own, [&](int place) { return group.staging(place, round.index); }), round);
  });
}

// ---- broadcast ----

void broadcast_staged(const ProcessReader& reader, const Broadcast& operation) {
  ProcessGroup& group = reader.group;
  const bool root = group.place() == operation.root;
  for_each_round(operation.size.count(), staging_bytes, [&](const Round& round) {
    if (root) copy_bytes(group.staging(operation.root, round.index), operation.data + round.begin, round.count);
    group.regroup({.bytes = root ? round.count : 0, .round = round.index});
    if (!root) copy_bytes(operation.data + round.begin, group.staging(operation.root, round.index), round.count);
  });
}

// ---- one rank's part of each collective ----
//
// Throws what ProcessGroup::enter() throws; any other exception has aborted the job.

void run_collective(const ProcessCall& call, std::span<const AllGather> segments) {
  meet_in_segments(call, segments, gather_directly<const ProcessReader>, gather_staged);
}

void run_collective(const ProcessCall& call, std::span<const ReduceScatter> segments) {
  meet_in_segments(call, segments, scatter_directly<const ProcessReader>, scatter_staged);
}

void run_collective(const ProcessCall& call, const AllReduce& operation) {
  meet(
      call, reinterpret_cast<const std::byte*>(operation.data),
      [&](const ProcessReader& reader) {
        sum_own_slice(reader, operation);
        reader.group.regroup();
        copy_other_slices(reader, operation);
      },
      [&](const ProcessReader& reader) { reduce_staged(reader, operation); });
}

void run_collective(const ProcessCall& call, const Broadcast& operation) {
  meet(
      call, operation.data, [&](const ProcessReader& reader) { copy_from_root(reader, operation); },
      [&](const ProcessReader& reader) { broadcast_staged(reader, operation); });
}

void run_collective(const ProcessCall& call, const Barrier&) {
  meet(
      call, nullptr, [](const ProcessReader&) {}, [](const ProcessReader&) {});
}

class ProcessCommunicator final : public TaskCommunicator<ProcessCommunicator> {
 public:
  explicit ProcessCommunicator(std::shared_ptr<ProcessGroup> group)
      : TaskCommunicator(group->members(), group->name()), group_(std::move(group)) {}

 private:
  friend TaskCommunicator<ProcessCommunicator>;
  template <typename Operation>
  void submit(Stream& stream, const Signature& signature, const Operation& operation) {
    stream.submit(
        [call = ProcessCall{.group = group_, .signature = signature}, operation] { run_collective(call, operation); });
  }

  std::shared_ptr<ProcessGroup> group_;
};

}  // namespace

std::unique_ptr<Communicator> make_process_communicator(std::shared_ptr<ProcessGroup> group) {
  return std::make_unique<ProcessCommunicator>(std::move(group));
}

}  // namespace tessera::comm
