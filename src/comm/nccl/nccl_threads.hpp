// Threads of one process over NCCL: they find each other in their common memory.
#pragma once

#include <memory>

#include "comm/control/thread_control.hpp"
#include "comm/nccl/nccl_library.hpp"
#include "comm/thread_job.hpp"
#include "tessera/comm/run.hpp"

namespace tessera::comm {

class NcclThreads final : public ThreadJob {
 public:
  // options outlive it. Throws UnavailableError where NCCL is not to be had, or has fewer devices than ranks and cannot
  // share them.
  explicit NcclThreads(const LaunchOptions& options);

  int size() const final { return room_.size(); }
  void run_rank(int rank, RankLog& log, const std::function<void(World&)>& body) final;
  void abort(int rank, std::string_view cause, std::exception_ptr exception) noexcept final {
    room_.abort(rank, cause, std::move(exception));
  }
  const JobFailure* failure() const noexcept final { return room_.failure(); }
  void leave(int) noexcept final {}  // run_rank() has said so, while NCCL was still watched

 private:
  const LaunchOptions& options_;
  ThreadControlRoom room_;
  std::unique_ptr<NcclLibrary> library_;
};

}  // namespace tessera::comm
