// One real rank of an imagined job, on the CPU. Its collectives have no peers: each is one task on its stream, which
// writes where a real one writes, and takes the modelled time.
#include "comm/modelled/modelled.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "comm/control/control_room.hpp"
#include "comm/launch_options.hpp"
#include "comm/meeting_collectives.hpp"
#include "comm/rank_run.hpp"
#include "comm/task_communicator.hpp"
#include "comm/world_backend.hpp"
#include "tessera/base/error.hpp"
#include "tessera/comm/run.hpp"
#include "tessera/device/arena.hpp"
#include "tessera/kernels/reduce.hpp"

namespace tessera {

// ---- time ----
//
// A signature's bytes are one rank's part of gathers and scattered sums, those of all ranks' transfers, else the whole
// buffer.

namespace {

double bytes_sent_of_segment(const comm::Signature& signature, double ranks) {
  using comm::CollectiveKind;
  const auto bytes = static_cast<double>(signature.bytes.count());
  switch (signature.kind) {
    case CollectiveKind::all_gather:
    case CollectiveKind::reduce_scatter: return (ranks - 1) * bytes;
    case CollectiveKind::all_reduce: return 2 * (ranks - 1) / ranks * bytes;
    case CollectiveKind::broadcast: return bytes;
    case CollectiveKind::redistribute: return bytes / ranks;
    case CollectiveKind::creation:
    case CollectiveKind::barrier: break;
  }
  return 0;
}

double bytes_sent(const comm::Signature& signature, double ranks) {
  double bytes = 0;
  for (std::size_t segment = 0; segment < signature.segments(); ++segment) {
    bytes += bytes_sent_of_segment(segment_of(signature, segment), ranks);
  }
  return bytes;
}

}  // namespace

std::chrono::nanoseconds comm::duration_of(const CollectiveTime& time, const Signature& signature, int ranks) {
  if (ranks == 1) return std::chrono::nanoseconds(0);
  constexpr double longest = 365.0 * 24 * 3600;
  const double moving = time.bytes_per_second > 0 ? bytes_sent(signature, ranks) / time.bytes_per_second : 0;
  const double seconds = std::min(moving + std::chrono::duration<double>(time.latency).count(), longest);
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(seconds));
}

// ---- collectives ----

namespace {

// Peers that are not there contribute zeros, or what this rank says (the World's host conveniences).
enum class Peers { zero, same };

// The job as a room in which one rank is: nobody waits for the others.
class RealRank final : public comm::ThreadControl {
 public:
  RealRank(comm::ControlRoom& room, const SimulateOptions& options)
      : ThreadControl(room, options.rank), room_(room), collectives_(options.collectives) {}

  const CollectiveTime& collectives() const { return collectives_; }
  void leave() noexcept final {}
  void throw_if_failed() const {
    if (failure() != nullptr) comm::throw_aborted(*failure());
  }
  // Throws AbortedError as soon as the job has failed.
  void sleep_until(std::chrono::steady_clock::time_point end) {
    auto lock = room_.lock();
    room_.changed(0).wait_until(lock, end, [this] { return failure() != nullptr; });
    throw_if_failed();
  }

 private:
  comm::ControlRoom& room_;
  const CollectiveTime collectives_;
};

// A communicator. Its tasks may outlive it.
struct ModelledPlace {
  ModelledPlace(RealRank& real, std::string called, const comm::Members& members, Peers others)
      : job(real),
        name(std::move(called)),
        rank(static_cast<std::size_t>(members.place)),
        ranks(members.ranks.size()),
        peers(others) {}

  RealRank& job;
  const std::string name;
  const std::size_t rank;
  const std::size_t ranks;
  const Peers peers;
  std::atomic<bool> busy = false;  // a collective is running
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
  const void* own = operation.data + place.rank * bytes_of(operation.wire, operation.shard_elements).count();
  kernels::ranked_sum_cpu(comm::sum_of(operation, std::span(&own, 1), 0, operation.shard_elements));
}

void leave(const ModelledPlace&, const AllReduce& operation) {
  if (operation.elements == 0) return;
  const void* own = operation.data;
  kernels::ranked_sum_cpu(comm::sum_of(operation, std::span(&own, 1), 0, operation.elements));
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

void leave(const ModelledPlace& place, const Redistribute& operation) {
  const auto me = static_cast<int>(place.rank);
  for (const Transfer& transfer : operation.transfers) {
    if (transfer.to != me || transfer.size == Bytes(0)) continue;
    std::byte* const target = operation.data + transfer.target.count();
    if (transfer.from == me || place.peers == Peers::same) {
      std::memcpy(target, operation.data + transfer.source.count(), transfer.size.count());
    } else {
      std::memset(target, 0, transfer.size.count());
    }
  }
}

void leave(const ModelledPlace&, const comm::Barrier&) {}

template <typename Operation>
void leave(const ModelledPlace& place, std::span<const Operation> segments) {
  for (const Operation& segment : segments) leave(place, segment);
}

struct ModelledCall {
  std::shared_ptr<ModelledPlace> place;
  std::chrono::nanoseconds duration;

  template <typename Operation>
  void operator()(const Operation& operation) const {
    const auto end = std::chrono::steady_clock::now() + duration;
    const comm::Claim claim(place->busy, place->job, place->name);
    leave(*place, operation);
    place->job.sleep_until(end);
  }
};

class ModelledBackend final : public World::Backend {
 public:
  ModelledBackend(RealRank& job, int threads, comm::RankLog& log)
      : Backend({.name = "modelled", .threads = threads}, job, log), job_(job) {}

  std::unique_ptr<Communicator> make_communicator(std::string name, const CommunicatorUse& use) final {
    return make(comm::communicator_name(name, use.group), use.group, Peers::zero);
  }
  std::unique_ptr<Communicator> make_host_communicator(std::string name) final {
    return make(name, std::nullopt, Peers::same);
  }

 private:
  std::unique_ptr<Communicator> make(const std::string& name, const std::optional<Group>& group, Peers peers) {
    job_.throw_if_failed();
    comm::Members members = comm::members_of(group, job_.rank(), job_.size());
    const auto place = std::make_shared<ModelledPlace>(job_, name, members, peers);
    return comm::make_task_communicator(std::move(members), name, [place](Stream&, const comm::Signature& call) {
      const auto ranks = static_cast<int>(place->ranks);
      return ModelledCall{place, comm::duration_of(place->job.collectives(), call, ranks)};
    });
  }

  RealRank& job_;
};

// ---- the job ----

constexpr int most_imagined_ranks = 1 << 20;

// Returns the options of one rank that is really launched.
LaunchOptions real_rank(const SimulateOptions& options) {
  return {.ranks = 1, .timeout = options.timeout, .threads = options.threads};
}

void validate(const SimulateOptions& options) {
  if (options.ranks < 1 || options.ranks > most_imagined_ranks) {
    throw UsageError(fmt::format("an imagined job has 1 to {} ranks, not {}", most_imagined_ranks, options.ranks));
  }
  if (options.rank < 0 || options.rank >= options.ranks) {
    throw UsageError(
        fmt::format("rank {} is none of an imagined job's {} ranks, which count from 0", options.rank, options.ranks));
  }
  const CollectiveTime& time = options.collectives;
  if (time.latency.count() < 0 || !std::isfinite(time.bytes_per_second) || time.bytes_per_second < 0) {
    throw UsageError(fmt::format("collectives cannot take {} ns at {} bytes per second", time.latency.count(),
                                 time.bytes_per_second));
  }
  comm::validate(real_rank(options));
}

}  // namespace

void simulate(const SimulateOptions& options, const std::function<void(World&)>& body) {
  validate(options);
  comm::ControlRoom room(options.ranks, options.timeout);
  RealRank job(room, options);
  comm::RankLog log(std::nullopt, options.rank);  // an imagined job keeps none
  const std::exception_ptr thrown = comm::run_rank(job, log, body, [&] {
    return std::make_unique<ModelledBackend>(job, comm::threads_per_rank(real_rank(options)), log);
  });
  const comm::JobFailure* failure = job.failure();
  if (failure == nullptr) return;
  const std::exception_ptr cause = comm::first_cause(*failure, thrown);
  if (options.ranks == 1) std::rethrow_exception(cause);
  std::rethrow_exception(comm::exception_from_rank(options.rank, cause));
}

}  // namespace tessera
