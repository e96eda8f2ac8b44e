// The job of one real rank.
#include "comm/modelled/modelled_job.hpp"

#include <utility>

namespace tessera::comm {

void ModelledJob::abort(std::string_view cause, std::exception_ptr exception) noexcept {
  const std::lock_guard lock(mutex_);
  if (failure() != nullptr) return;
  record(failure_, options_.rank, cause, std::move(exception));
  failed_.store(true, std::memory_order_release);
  changed_.notify_all();
}

void ModelledJob::throw_if_failed() const {
  if (const JobFailure* failed = failure()) throw_aborted(*failed);
}

void ModelledJob::sleep_until(std::chrono::steady_clock::time_point end) {
  std::unique_lock lock(mutex_);
  changed_.wait_until(lock, end, [this] { return failure() != nullptr; });
  throw_if_failed();
}

ModelledChannel& ModelledJob::channel(std::string name) {
  ModelledChannel& made = channels_.emplace_back();
  made.name = std::move(name);
  return made;
}

}  // namespace tessera::comm
