// One rank's view of the job: who it is, its device, its communicators, and how the job ends. There is no global: a
// World is handed to the user's function by run() (run.hpp) and passed on from there.
//
// Thread safety: the accessors and abort() may be called from any thread of the rank; the rest from the rank's own
// thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/comm/communicator.hpp"
#include "tessera/comm/mesh.hpp"
#include "tessera/device/arena.hpp"
#include "tessera/device/device.hpp"
#include "tessera/plan/strategy.hpp"

#pragma GCC visibility push(default)

namespace tessera {

// A communicator's use says what it is for.
struct CommunicatorUse {
  // It moves memory of the host only, on streams of the CPU: no device then holds anything for it.
  bool host_memory = false;
  // Device memory for its staging (World::staging()), which outlives the communicator's last collective. Default: it
  // takes 64 MiB of its own where it needs any.
  std::span<std::byte> staging{};
  // One communicator for each of these groups, of which this rank gets its own. Default: one over all ranks.
  std::optional<Group> group = std::nullopt;
  // It carries messages, of which a stream awaits one while other collectives of this rank go on. Backends that keep
  // all launches of a rank in one order throw UsageError: NCCL before 2.26, and split from a communicator of the
  // program's.
  bool carries_messages = false;
};

class World {
 public:
  class [[gnu::visibility("hidden")]] Backend;  // implemented per backend, under src/comm
  explicit World(std::unique_ptr<Backend> backend);
  World(World&&) noexcept;
  World& operator=(World&&) noexcept;
  ~World();

  int rank() const;
  int size() const;
  Device device() const;
  int threads() const;  // host threads that this rank may use to compute (parallel.hpp): cores / ranks, at least 1
  std::chrono::milliseconds timeout() const;  // the deadline of every wait for another rank
  // "local", "mpi" (processes on the CPU), "shared memory" (the same, started without MPI), "nccl", "modelled".
  std::string_view backend_name() const;

  // Memory for what collectives move, a rank's arena: like any other (arena.hpp), and where ranks are processes of one
  // host, peers read it directly; other memory goes through buffers of the communicator. Not collective. Ends before
  // the World.
  Arena make_arena(Bytes size);

  // The job's ranks along axes, outermost first; the product of their sizes is size(). Not collective: that all ranks
  // mean the same mesh is compared when communicators are made on its groups. Rank 0 warns, once, where groups of the
  // innermost axis are on several hosts only because the launcher has interleaved them. Throws UsageError as Mesh does.
  Mesh mesh(std::vector<MeshAxis> axes) const;

  // A new communicator over all ranks, or over this rank's group of several. Collective over all ranks of the job
  // either way: every rank calls it in the same order with the same name and the same partition into groups (else a
  // CommunicationError names both). Synchronises the host with the other ranks. Its rank() is this rank's place in the
  // group; its errors name ranks of the job.
  std::unique_ptr<Communicator> make_communicator(std::string name, const CommunicatorUse& use = {});
  // Returns what its communicators hold on the device beside the data; the plan of a model has it in a category of its
  // own.
  CollectiveStaging staging() const;

  // Conveniences on the host, over a communicator of their own. All are collective, block, and throw as the stream
  // would.
  void barrier(std::string_view label);
  // The sum over ranks in rank order, in fp32, divided once.
  float average(float value, std::string_view label);
  double sum(double value, std::string_view label);  // in rank order
  // The exact mean of an evaluation: the sum of all ranks' `sum` in rank order, divided once by that of their `weight`
  // (samples, say), both in fp64, in one gather. A rank without any has 0 of both. Throws UsageError for a weight that
  // is negative or not finite, and on all ranks when every weight is 0.
  double mean(double sum, double weight, std::string_view label);
  // Every rank gives the same number of bytes; the result holds them in rank order.
  std::vector<std::byte> gather(std::span<const std::byte> mine, std::string_view label);
  // The same in place, into memory of the caller's: rank r's part stands at r times all.size() / size().
  void all_gather(std::span<std::byte> all, std::string_view label);
  // Throws CommunicationError on all ranks, naming ranks and values, when `value` is not the same everywhere.
  void require_equal(std::uint64_t value, std::string_view what);

  // This rank gets on with work for which its peers may be waiting: a long file, say. Whoever waits for it waits for
  // timeout() from now on, so a rank that makes progress is never timed out, and one that stands still is. To be called
  // several times per timeout(), from any thread; takes less than a microsecond and tells nobody more than a few times
  // per timeout(). The World outlives the call.
  void note_progress() const noexcept;
  std::chrono::steady_clock::time_point last_progress() const noexcept;  // its latest call on this rank

  // `warning: rank R: text`, one line on stderr, and in the rank's log where there is one. Any rank may; output that is
  // no warning is for rank 0 alone.
  void warn(std::string_view text) const noexcept;

  // Ends the job: every rank's present and later waits throw AbortedError with this rank and this cause. The first call
  // wins.
  void abort(std::string_view cause) noexcept;
  bool aborted() const noexcept;
  void throw_if_aborted() const;  // AbortedError naming the failed rank and its cause

  // Calls `end` when this World ends, unless the result was let go before: what runs on a World is taken apart while
  // there is one, and can say later why it no longer works. `end` must not throw.
  [[nodiscard]] std::shared_ptr<const void> before_end(std::function<void()> end);

 private:
  class [[gnu::visibility("hidden")]] HostCollectives;  // the conveniences' communicator and stream

  void call_ends() noexcept;

  std::vector<std::weak_ptr<const std::function<void()>>> ends_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<HostCollectives> host_;  // runs on the backend: it ends first
};

}  // namespace tessera

#pragma GCC visibility pop
