// The mpi backend: a rank is a process, on the CPU.
#pragma once

#include <memory>
#include <string>

#include "comm/mpi/process_group.hpp"
#include "comm/mpi/process_job.hpp"
#include "comm/rank_log.hpp"
#include "comm/world_backend.hpp"

namespace tessera::comm {

class ProcessBackend final : public World::Backend {
 public:
  // Job and log outlive the World, its communicators and all streams that these run on.
  ProcessBackend(ProcessJob& job, int threads, RankLog& log);

  int rank() const final { return job_.place().rank; }
  int size() const final { return job_.place().ranks; }
  Device device() const final { return Device::cpu(); }
  int threads() const final { return threads_; }
  std::chrono::milliseconds timeout() const final { return job_.timeout(); }
  std::string_view name() const final { return "mpi"; }

  Arena make_arena(Bytes size) final { return job_.make_arena(size); }
  std::unique_ptr<Communicator> make_communicator(std::string name, const CommunicatorUse& use) final;

  void warn(std::string_view text) noexcept final { comm::warn(log_, rank(), text); }
  void abort(std::string_view cause) noexcept final { job_.abort(cause, nullptr); }
  const JobFailure* failure() const noexcept final { return job_.failure(); }

 private:
  SharedMemory shared_with_host(const std::string& name);

  ProcessJob& job_;
  int threads_;
  RankLog& log_;
  ProcessGroup creation_;
  std::size_t communicators_made_ = 0;
};

}  // namespace tessera::comm
