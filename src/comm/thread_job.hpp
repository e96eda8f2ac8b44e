// A job whose ranks are threads of this process, as its launch sees it: whatever their backend, each rank gets a World,
// and the first failure decides the outcome.
#pragma once

#include <exception>
#include <functional>
#include <string_view>

#include "comm/job_failure.hpp"
#include "comm/rank_log.hpp"
#include "tessera/comm/world.hpp"

namespace tessera::comm {

class ThreadJob {
 public:
  virtual ~ThreadJob() = default;
  ThreadJob(const ThreadJob&) = delete;
  ThreadJob& operator=(const ThreadJob&) = delete;

  virtual int size() const = 0;

  // On the rank's own thread: gives `body` its World, which ends before this returns.
  virtual void run_rank(int rank, RankLog& log, const std::function<void(World&)>& body) = 0;

  // From any thread. The first failure wins; whoever waits for a rank is woken.
  virtual void abort(int rank, std::string_view cause, std::exception_ptr exception) noexcept = 0;
  virtual const JobFailure* failure() const noexcept = 0;
  // The rank takes part in nothing more.
  virtual void leave(int rank) noexcept = 0;

 protected:
  ThreadJob() = default;
};

}  // namespace tessera::comm
