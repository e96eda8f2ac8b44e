// The local backend and its launch: a rank is a thread of this process. Rank r has CUDA device r modulo their number,
// which several may share, or the CPU.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "comm/launch.hpp"
#include "comm/launch_options.hpp"
#include "comm/local/local_group.hpp"
#include "comm/world_backend.hpp"
#include "device/cuda/cuda_queue.hpp"
#include "tessera/device/cuda.hpp"

namespace tessera::comm {
namespace {

class LocalMembership final : public Membership {
 public:
  LocalMembership(LocalJob& job, int rank) : job_(job), rank_(rank) {}

  int rank() const final { return rank_; }
  void abort(std::string_view cause, std::exception_ptr exception) noexcept final {
    job_.abort(rank_, cause, std::move(exception));
  }
  const JobFailure* failure() const noexcept final { return job_.failure(); }
  void note_progress() noexcept final { job_.life(rank_).note(SignOfLife::Clock::now()); }
  void leave() noexcept final { job_.leave(rank_); }

 private:
  LocalJob& job_;
  int rank_;
};

class LocalBackend final : public World::Backend {
 public:
  LocalBackend(LocalJob& job, const Facts& facts, Membership& membership, RankLog& log)
      : Backend(facts, membership, log), job_(job) {}

  // Making a communicator is itself a collective, of all ranks, with its name and partition as label: ranks that
  // disagree about it, or do not come, get the same errors as in any other.
  std::unique_ptr<Communicator> make_communicator(std::string name, const CommunicatorUse& use) final {
    const std::string label = creation_label(name, use.group);
    job_.creation().enter(facts().rank, {.signature = signature_of_creation(label)});
    job_.creation().finish(facts().rank);
    Members members = members_of(use.group, facts().rank, facts().size);
    LocalGroup& group = job_.group(communicators_made_++, communicator_name(name, use.group), members.ranks);
    if (facts().device.kind() == DeviceKind::cuda) group.make_marks(members.place, facts().device);
    return make_local_communicator(std::move(members), group);
  }

 private:
  LocalJob& job_;
  std::size_t communicators_made_ = 0;
};

class LocalThreads final : public ThreadJob {
 public:
  explicit LocalThreads(const LaunchOptions& options)
      : job_(thread_ranks(options), options.timeout),
        kind_(resolve(options.device)),
        threads_(threads_per_rank(options)) {
    if (kind_ == DeviceKind::cuda) device::share_memory(std::min(job_.size(), cuda_device_count()));
  }

  int size() const final { return job_.size(); }
  std::exception_ptr run_rank(int rank, RankLog& log, const Body& body) final {
    LocalMembership membership(job_, rank);
    return comm::run_rank(membership, log, body, [&] {
      const Device device = kind_ == DeviceKind::cpu ? Device::cpu() : Device::cuda(rank % cuda_device_count());
      const World::Backend::Facts facts{.name = "local",
                                        .rank = rank,
                                        .size = job_.size(),
                                        .device = device,
                                        .threads = threads_,
                                        .timeout = job_.timeout()};
      return std::make_unique<LocalBackend>(job_, facts, membership, log);
    });
  }
  void abort(int rank, std::string_view cause, std::exception_ptr exception) noexcept final {
    job_.abort(rank, cause, std::move(exception));
  }
  const JobFailure* failure() const noexcept final { return job_.failure(); }

 private:
  LocalJob job_;
  const DeviceKind kind_;
  const int threads_;
};

}  // namespace

std::unique_ptr<ThreadJob> local_threads(const LaunchOptions& options) {
  return std::make_unique<LocalThreads>(options);
}

}  // namespace tessera::comm
