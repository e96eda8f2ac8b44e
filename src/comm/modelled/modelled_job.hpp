// What the one real rank's World and communicators share: the options, the failure that ends the job, and the state of
// each communicator, which tasks on streams may outlive.
//
// Thread safety: everything but channel(), which is for the rank's own thread.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <list>
#include <mutex>
#include <string>
#include <string_view>

#include "comm/job_failure.hpp"
#include "tessera/comm/simulate.hpp"

namespace tessera::comm {

struct ModelledChannel {
  std::string name;
  std::atomic<bool> busy = false;  // a collective is running
};

class ModelledJob {
 public:
  explicit ModelledJob(const SimulateOptions& options) : options_(options) {}
  ModelledJob(const ModelledJob&) = delete;
  ModelledJob& operator=(const ModelledJob&) = delete;

  const SimulateOptions& options() const { return options_; }

  // The first failure wins; whoever sleeps is woken.
  void abort(std::string_view cause, std::exception_ptr exception) noexcept;
  // Null while nothing failed; constant afterwards.
  const JobFailure* failure() const noexcept { return failed_.load(std::memory_order_acquire) ? &failure_ : nullptr; }
  void throw_if_failed() const;
  // Throws AbortedError as soon as the job has failed.
  void sleep_until(std::chrono::steady_clock::time_point end);

  // Lives as long as the job.
  ModelledChannel& channel(std::string name);

 private:
  const SimulateOptions options_;
  std::mutex mutex_;
  std::condition_variable changed_;
  JobFailure failure_;
  std::atomic<bool> failed_ = false;
  std::list<ModelledChannel> channels_;
};

}  // namespace tessera::comm
