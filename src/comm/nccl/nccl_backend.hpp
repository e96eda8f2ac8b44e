// The nccl backend: a rank has a CUDA device of its own, and is a thread or a process.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "comm/control/control_communicator.hpp"
#include "comm/nccl/nccl_communicator.hpp"
#include "comm/nccl/nccl_job.hpp"
#include "comm/rank_log.hpp"
#include "comm/world_backend.hpp"

namespace tessera::comm {

class NcclBackend final : public World::Backend {
 public:
  // Job and log outlive the World, its communicators and all streams that these run on.
  NcclBackend(NcclJob& job, int threads, RankLog& log) : job_(job), threads_(threads), log_(log) {}

  int rank() const final { return job_.control().rank(); }
  int size() const final { return job_.control().size(); }
  Device device() const final { return job_.device(); }
  int threads() const final { return threads_; }
  std::chrono::milliseconds timeout() const final { return job_.control().timeout(); }
  std::string_view name() const final { return "nccl"; }

  Arena make_arena(Bytes size) final { return job_.make_arena(size); }
  std::unique_ptr<Communicator> make_communicator(std::string name, const CommunicatorUse& use) final {
    if (use.host_memory) return make_host_communicator(std::move(name));
    return std::make_unique<NcclCommunicator>(job_.make_group(name, use.staging));
  }
  CollectiveStaging staging() const final { return job_.staging(); }
  Device host_device() const final { return Device::cpu(); }
  std::unique_ptr<Communicator> make_host_communicator(std::string name) final {
    return std::make_unique<ControlCommunicator>(job_.control(), std::move(name));
  }

  void warn(std::string_view text) noexcept final { comm::warn(log_, rank(), text); }
  void abort(std::string_view cause) noexcept final { job_.control().abort(cause, nullptr); }
  const JobFailure* failure() const noexcept final { return job_.control().failure(); }

 private:
  NcclJob& job_;
  int threads_;
  RankLog& log_;
};

}  // namespace tessera::comm
