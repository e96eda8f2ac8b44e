// The local backend: a rank is a thread of this process, on the CPU or on a CUDA device, which several may share.
#pragma once

#include <memory>

#include "comm/local/local_job.hpp"
#include "comm/rank_log.hpp"
#include "comm/world_backend.hpp"

namespace tessera::comm {

// What a rank computes with.
struct LocalPlace {
  Device device = Device::cpu();
  int threads = 1;
};

class LocalBackend final : public World::Backend {
 public:
  // The job outlives its Worlds, their communicators and all streams that these run on; so does the log.
  LocalBackend(LocalJob& job, int rank, const LocalPlace& place, RankLog& log)
      : job_(job), rank_(rank), place_(place), log_(log) {}

  int rank() const final { return rank_; }
  int size() const final { return job_.size(); }
  Device device() const final { return place_.device; }
  int threads() const final { return place_.threads; }
  std::chrono::milliseconds timeout() const final { return job_.timeout(); }
  std::string_view name() const final { return "local"; }

  std::unique_ptr<Communicator> make_communicator(std::string name, const CommunicatorUse& use) final;

  void warn(std::string_view text) noexcept final { comm::warn(log_, rank_, text); }
  void abort(std::string_view cause) noexcept final { job_.abort(rank_, cause, nullptr); }
  const JobFailure* failure() const noexcept final { return job_.failure(); }

 private:
  LocalJob& job_;
  int rank_;
  LocalPlace place_;
  RankLog& log_;
  std::size_t communicators_made_ = 0;
};

}  // namespace tessera::comm
