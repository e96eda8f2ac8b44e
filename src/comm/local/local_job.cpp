// The job of ranks that are threads: it fails once, for all.
#include "comm/local/local_job.hpp"

#include <utility>

#include "comm/local/local_group.hpp"

namespace tessera::comm {

LocalJob::LocalJob(int size, std::chrono::milliseconds timeout)
    : size_(size), timeout_(timeout), left_(static_cast<std::size_t>(size)) {}

LocalJob::~LocalJob() = default;

void LocalJob::abort(int rank, std::string_view cause, std::exception_ptr exception) noexcept {
  const Lock lock(mutex_);
  abort(lock, rank, cause, std::move(exception));
}

void LocalJob::abort(const Lock&, int rank, std::string_view cause, std::exception_ptr exception) noexcept {
  if (failure() != nullptr) return;
  record(failure_, rank, cause, std::move(exception));
  failed_.store(true, std::memory_order_release);
  wake_all();
}

void LocalJob::leave(int rank) noexcept {
  const Lock lock(mutex_);
  left_[static_cast<std::size_t>(rank)] = true;
  anyone_left_ = true;
  wake_all();
}

LocalGroup& LocalJob::group(std::size_t index, const std::string& name) {
  const Lock lock(mutex_);
  if (index == groups_.size()) groups_.push_back(std::make_unique<LocalGroup>(*this, name));
  return *groups_.at(index);
}

void LocalJob::wake_all() noexcept {
  for (const auto& group : groups_) group->wake();
}

}  // namespace tessera::comm
