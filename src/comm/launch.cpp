// launch(): ranks as threads of this process. What decides its outcome is the job's first failure, not which rank's
// thread ended first: the AbortedErrors of the other ranks are consequences.
#include <fmt/format.h>

#include <exception>
#include <memory>
#include <system_error>
#include <thread>
#include <vector>

#include "comm/launch_options.hpp"
#include "comm/local/local_backend.hpp"
#include "comm/local/local_job.hpp"
#include "comm/rank_error.hpp"
#include "tessera/base/error.hpp"
#include "tessera/comm/run.hpp"

namespace tessera {
namespace {

using comm::LocalJob;
using Body = std::function<void(World&)>;

class RankThreads {
 public:
  RankThreads(const LaunchOptions& options, const Body& body)
      : job_(options.ranks, options.timeout),
        threads_per_rank_(comm::threads_per_rank(options)),
        body_(body),
        thrown_(static_cast<std::size_t>(options.ranks)) {}

  void run() {
    std::vector<std::thread> threads;
    if (start(threads)) run_rank(0);
    for (std::thread& thread : threads) thread.join();
  }

  // Throws the first cause, if the job failed. After run().
  void rethrow_failure() const {
    const comm::JobFailure* failure = job_.failure();
    if (failure == nullptr) return;
    const std::exception_ptr cause = comm::first_cause(*failure, thrown_[static_cast<std::size_t>(failure->rank)]);
    if (job_.size() == 1) std::rethrow_exception(cause);
    comm::rethrow_from_rank(failure->rank, cause);
  }

 private:
  // Whether every rank but 0 has its thread; otherwise the job is aborted, and those that run will end.
  bool start(std::vector<std::thread>& threads) {
    for (int rank = 1; rank < job_.size(); ++rank) {
      try {
        threads.emplace_back([this, rank] { run_rank(rank); });
      } catch (const std::system_error& error) {
        const std::string cause = fmt::format("cannot start the rank's thread: {}", error.what());
        job_.abort(rank, cause, std::make_exception_ptr(UnavailableError(cause)));
        return false;
      }
    }
    return true;
  }

  void run_rank(int rank) noexcept {
    try {
      World world(std::make_unique<comm::LocalBackend>(job_, rank, threads_per_rank_));
      body_(world);
    } catch (...) {
      std::exception_ptr& thrown = thrown_[static_cast<std::size_t>(rank)];
      thrown = std::current_exception();
      job_.abort(rank, comm::text_of(thrown), thrown);
    }
    job_.leave(rank);
  }

  LocalJob job_;
  int threads_per_rank_;
  const Body& body_;
  std::vector<std::exception_ptr> thrown_;  // by rank
};

}  // namespace

void launch(const LaunchOptions& options, const std::function<void(World&)>& body) {
  comm::validate(options);
  RankThreads ranks(options, body);
  ranks.run();
  ranks.rethrow_failure();
}

}  // namespace tessera
