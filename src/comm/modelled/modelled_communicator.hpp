// The job of one real rank, and its collectives, which have no peers: each is one task on its stream, which writes
// where a real one writes, and takes the modelled time.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "comm/job_failure.hpp"
#include "comm/members.hpp"
#include "comm/signature.hpp"
#include "tessera/comm/communicator.hpp"
#include "tessera/comm/simulate.hpp"

namespace tessera::comm {

// ---- the job ----
//
// What the one real rank's World and communicators share: the options, the failure that ends the job, and the state of
// each communicator, which tasks on streams may outlive.
//
// Thread safety: everything but channel(), which is for the rank's own thread.

struct ModelledChannel {
  std::string name;
  std::atomic<bool> busy = false;  // a collective is running
};

class ModelledJob final : public Membership {
 public:
  explicit ModelledJob(const SimulateOptions& options) : options_(options) {}

  const SimulateOptions& options() const { return options_; }

  int rank() const final { return options_.rank; }
  void abort(std::string_view cause, std::exception_ptr exception) noexcept final;
  const JobFailure* failure() const noexcept final { return failure_.get(); }
  void note_progress() noexcept final {}
  void leave() noexcept final {}
  void throw_if_failed() const;
  // Throws AbortedError as soon as the job has failed.
  void sleep_until(std::chrono::steady_clock::time_point end);

  // Lives as long as the job.
  ModelledChannel& channel(std::string name);

 private:
  const SimulateOptions options_;
  std::mutex mutex_;
  std::condition_variable changed_;
  FirstFailure failure_;
  std::list<ModelledChannel> channels_;
};

// ---- time ----

// The formula of CollectiveTime for one call. At most a year.
std::chrono::nanoseconds duration_of(const CollectiveTime& time, const Signature& signature, int ranks);

// ---- collectives ----

// What the ranks that are not there contribute: zeros, or what this rank says (the World's host conveniences).
enum class Peers { zero, same };

// The job outlives the communicator and its tasks.
std::unique_ptr<Communicator> make_modelled_communicator(ModelledJob& job, const std::string& name, Members members,
                                                         Peers peers);

}  // namespace tessera::comm
