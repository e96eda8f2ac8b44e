// How long each collective takes, and what it leaves in memory.
#include "comm/modelled/modelled_communicator.hpp"

#include <algorithm>
#include <cstring>
#include <span>
#include <string>
#include <utility>

#include "comm/collective_errors.hpp"
#include "comm/task_communicator.hpp"
#include "tessera/base/error.hpp"
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

struct Place {
  std::size_t rank;
  std::size_t ranks;
  Peers peers;
};

void leave(const Place& place, const AllGather& operation) {
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
void leave(const Place& place, const ReduceScatter& operation) {
  if (operation.shard_elements == 0) return;
  const void* own = operation.data + place.rank * (operation.shard_elements * size_of(operation.wire)).count();
  kernels::ranked_sum_cpu({.contributions = std::span(&own, 1),
                           .type = operation.wire,
                           .result = operation.result,
                           .count = operation.shard_elements,
                           .accumulate = operation.accumulate,
                           .divisor = operation.divisor});
}

void leave(const Place&, const AllReduce& operation) {
  if (operation.elements == 0) return;
  const void* own = operation.data;
  kernels::ranked_sum_cpu({.contributions = std::span(&own, 1),
                           .result = operation.data,
                           .count = operation.elements,
                           .divisor = operation.divisor});
}

// Every page is written, with what is there.
void leave(const Place& place, const Broadcast& operation) {
  if (static_cast<std::size_t>(operation.root) == place.rank) return;
  const std::size_t size = operation.size.count();
  const auto touch = [&](std::size_t offset) {
    volatile std::byte* const byte = operation.data + offset;
    *byte = *byte;
  };
  for (std::size_t offset = 0; offset < size; offset += Arena::page.count()) touch(offset);
  if (size > 0) touch(size - 1);
}

void leave(const Place&, const Barrier&) {}

template <typename Operation>
void leave(const Place& place, std::span<const Operation> segments) {
  for (const Operation& segment : segments) leave(place, segment);
}

// One collective of a communicator at a time, as with peers.
class Claim {
 public:
  Claim(ModelledJob& job, ModelledChannel& channel) : channel_(channel) {
    if (!channel.busy.exchange(true)) return;
    const UsageError error(two_streams_text(job.options().rank, channel.name));
    job.abort(error.what(), std::make_exception_ptr(error));
    throw error;
  }
  ~Claim() { channel_.busy = false; }
  Claim(const Claim&) = delete;
  Claim& operator=(const Claim&) = delete;

 private:
  ModelledChannel& channel_;
};

template <typename Operation>
void leave(const Place& place, const SingleSegment<Operation>& segment) {
  leave(place, segment.operation);
}

class ModelledCommunicator final : public TaskCommunicator<ModelledCommunicator> {
 public:
  ModelledCommunicator(ModelledJob& job, std::string name, Members members, Peers peers)
      : TaskCommunicator(std::move(members), name), job_(job), channel_(job.channel(std::move(name))), peers_(peers) {}

 private:
  friend TaskCommunicator<ModelledCommunicator>;
  template <typename Operation>
  void submit(Stream& stream, const Signature& signature, const Operation& operation) {
    const Place place{static_cast<std::size_t>(rank()), static_cast<std::size_t>(size()), peers_};
    const std::chrono::nanoseconds duration = duration_of(job_.options().collectives, signature, size());
    stream.submit([&job = job_, &channel = channel_, place, duration, operation] {
      const auto end = std::chrono::steady_clock::now() + duration;
      job.throw_if_failed();
      const Claim claim(job, channel);
      leave(place, operation);
      job.sleep_until(end);
    });
  }

  ModelledJob& job_;
  ModelledChannel& channel_;
  Peers peers_;
};

}  // namespace

std::unique_ptr<Communicator> make_modelled_communicator(ModelledJob& job, std::string name, Members members,
                                                         Peers peers) {
  return std::make_unique<ModelledCommunicator>(job, std::move(name), std::move(members), peers);
}

}  // namespace tessera::comm
