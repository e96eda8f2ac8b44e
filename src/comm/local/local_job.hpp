// The state that the ranks of one process share: the job's first failure, who has left, and the communicators' groups.
//
// Thread safety: one mutex for the whole job. A failure and its consequences for every group are thus one atomic step,
//   and which error a rank sees is never a race. Functions that take a Lock expect it held on mutex().
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "comm/job_failure.hpp"

namespace tessera::comm {

class LocalGroup;
using Lock = std::unique_lock<std::mutex>;

class LocalJob {
 public:
  LocalJob(int size, std::chrono::milliseconds timeout);
  ~LocalJob();
  LocalJob(const LocalJob&) = delete;
  LocalJob& operator=(const LocalJob&) = delete;

  int size() const { return size_; }
  std::chrono::milliseconds timeout() const { return timeout_; }
  std::mutex& mutex() { return mutex_; }

  // The first failure wins; every rank that waits is woken.
  void abort(int rank, std::string_view cause, std::exception_ptr exception) noexcept;
  void abort(const Lock& lock, int rank, std::string_view cause, std::exception_ptr exception) noexcept;

  // Null while nothing failed; constant afterwards. Needs no lock.
  const JobFailure* failure() const noexcept { return failed_.load(std::memory_order_acquire) ? &failure_ : nullptr; }

  // The rank takes part in nothing more.
  void leave(int rank) noexcept;
  bool anyone_left(const Lock&) const { return anyone_left_; }
  bool has_left(const Lock&, int rank) const { return left_[static_cast<std::size_t>(rank)]; }

  // The group of the world's communicator number `index`, which whoever asks first makes. It lives as long as the job.
  LocalGroup& group(std::size_t index, const std::string& name);

 private:
  void wake_all() noexcept;

  const int size_;
  const std::chrono::milliseconds timeout_;
  std::mutex mutex_;
  std::vector<bool> left_;  // by rank
  bool anyone_left_ = false;
  std::vector<std::unique_ptr<LocalGroup>> groups_;
  JobFailure failure_;
  std::atomic<bool> failed_ = false;
};

}  // namespace tessera::comm
