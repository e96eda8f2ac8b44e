// Threads of one process over the local backend.
#pragma once

#include "comm/local/local_job.hpp"
#include "comm/thread_job.hpp"
#include "tessera/comm/run.hpp"

namespace tessera::comm {

class LocalThreads final : public ThreadJob {
 public:
  // options outlive it.
  explicit LocalThreads(const LaunchOptions& options);

  int size() const final { return job_.size(); }
  void run_rank(int rank, RankLog& log, const std::function<void(World&)>& body) final;
  void abort(int rank, std::string_view cause, std::exception_ptr exception) noexcept final {
    job_.abort(rank, cause, std::move(exception));
  }
  const JobFailure* failure() const noexcept final { return job_.failure(); }
  void leave(int rank) noexcept final { job_.leave(rank); }

 private:
  LocalJob job_;
  const DeviceKind kind_;
  const int threads_;
};

}  // namespace tessera::comm
