// How long each collective takes, and what it leaves in memory.
#include "comm/modelled/modelled_communicator.hpp"

#include <algorithm>
#include <cstring>
#include <span>
#include <string>
#include <utility>

#include "comm/meeting_collectives.hpp"
#include "comm/task_communicator.hpp"
#include "tessera/device/arena.hpp"
#include "tessera/kernels/reduce.hpp"

namespace tessera::comm {

// ---- the job ----

void ModelledJob::abort(std::string_view cause, std::exception_ptr exception) noexcept {
  const std::lock_guard lock(mutex_);
  if (failure_.record(options_.rank, cause, std::move(exception))) changed_.notify_all();
}

void ModelledJob::throw_if_failed() const {
  if (const JobFailure* failed = failure()) throw_aborted(*failed);
}

void ModelledJob::sleep_until(std::chrono::steady_clock::time_point end) {
  std::unique_lock lock(mutex_);
  changed_.wait_until(lock, end, [this] { return failure() != nullptr; });
  throw_if_failed();
}

ModelledChannel& ModelledJob::channel(std::string name) {
  ModelledChannel& made = channels_.emplace_back();
  made.name = std::move(name);
  return made;
}

// ---- time: the ring's formulas ----
//
// A signature's bytes are one rank's part of gathers and scattered sums, else the whole buffer.

namespace {

double bytes_sent_of_segment(const Signature& signature, double ranks) {
  const auto bytes = static_cast<double>(signature.bytes.count());
  switch (signature.kind) {
    case CollectiveKind::all_gather:
    case CollectiveKind::reduce_scatter: return (ranks - 1) * bytes;
    case CollectiveKind::all_reduce: return 2 * (ranks - 1) / ranks * bytes;
    case CollectiveKind::broadcast: return bytes;
    case CollectiveKind::creation:
    case CollectiveKind::barrier: break;
  }
  return 0;
}

double bytes_sent(const Signature& signature, double ranks) {
  double bytes = 0;
  for (std::size_t segment = 0; segment < signature.segments(); ++segment) {
    bytes += bytes_sent_of_segment(segment_of(signature, segment), ranks);
  }
  return bytes;
}

}  // namespace

std::chrono::nanoseconds duration_of(const CollectiveTime& time, const Signature& signature, int ranks) {
  if (ranks == 1) return std::chrono::nanoseconds(0);
  constexpr double longest = 365.0 * 24 * 3600;
  const double moving = time.bytes_per_second > 0 ? bytes_sent(signature, ranks) / time.bytes_per_second : 0;
  const double seconds = std::min(moving + std::chrono::duration<double>(time.latency).count(), longest);
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(seconds));
}

// ---- collectives ----

namespace {

struct ModelledPlace {
  std::size_t rank;
  std::size_t ranks;
  Peers peers;
};

void leave(const ModelledPlace& place, const AllGather& operation) {
  const std::size_t bytes = operation.shard.count();
  if (bytes == 0) return;
  const std::byte* own = operation.data + place.rank * bytes;
  for (std::size_t rank = 0; rank < place.ranks; ++rank) {
    if (rank == place.rank) continue;
    std::byte* const part = operation.data + rank * bytes;
    if (place.peers == Peers::zero) {
      std::memset(part, 0, bytes);
    } else {
      std::memcpy(part, own, bytes);
    }
  }
}

// The sum over this rank alone: zeros change none of its values.
void leave(const ModelledPlace& place, const ReduceScatter& operation) {
  if (operation.shard_elements == 0) return;
  const void* own = operation.data + place.rank * (operation.shard_elements * size_of(operation.wire)).count();
  kernels::ranked_sum_cpu(sum_of(operation, std::span(&own, 1), 0, operation.shard_elements));
}

void leave(const ModelledPlace&, const AllReduce& operation) {
  if (operation.elements == 0) return;
  const void* own = operation.data;
  kernels::ranked_sum_cpu(sum_of(operation, std::span(&own, 1), 0, operation.elements));
}

// Every page is written, with what is there.
void leave(const ModelledPlace& place, const Broadcast& operation) {
  if (static_cast<std::size_t>(operation.root) == place.rank) return;
  const std::size_t size = operation.size.count();
  const auto touch = [&](std::size_t offset) {
    volatile std::byte* const byte = operation.data + offset;
    *byte = *byte;
  };
  for (std::size_t offset = 0; offset < size; offset += Arena::page.count()) touch(offset);
  if (size > 0) touch(size - 1);
}

void leave(const ModelledPlace&, const Barrier&) {}

template <typename Operation>
void leave(const ModelledPlace& place, std::span<const Operation> segments) {
  for (const Operation& segment : segments) leave(place, segment);
}

struct ModelledCall {
  ModelledJob& job;
  ModelledChannel& channel;
  ModelledPlace place;
  std::chrono::nanoseconds duration;

  template <typename Operation>
  void operator()(const Operation& operation) const {
    const auto end = std::chrono::steady_clock::now() + duration;
    const Claim claim(channel.busy, job, channel.name);
    leave(place, operation);
    job.sleep_until(end);
  }
};

struct ModelledCalls {
  ModelledJob& job;
  ModelledChannel& channel;
  ModelledPlace place;
  ModelledCall call(Stream&, const Signature& signature) const {
    const auto ranks = static_cast<int>(place.ranks);
    return {job, channel, place, duration_of(job.options().collectives, signature, ranks)};
  }
};

}  // namespace

std::unique_ptr<Communicator> make_modelled_communicator(ModelledJob& job, const std::string& name, Members members,
                                                         Peers peers) {
  const ModelledPlace place{static_cast<std::size_t>(members.place), members.ranks.size(), peers};
  return make_task_communicator(std::move(members), name, ModelledCalls{job, job.channel(name), place});
}

}  // namespace tessera::comm
