// The thread behind a Loader. Batches are numbered from 0 in the order of the sampler; batch n stands in slot n %
// slots.
#include "tessera/data/prefetcher.hpp"

#include <fmt/format.h>

#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "tessera/base/error.hpp"

namespace tessera {

namespace {

void check(const DistributedSampler& sampler, const LoaderOptions& options) {
  if (options.depth == 0) throw UsageError("Loader: depth must be above 0, but is 0");
  if (options.keep == 0) throw UsageError("Loader: keep must be above 0, but is 0");
  if (sampler.batches_per_epoch() == 0 && !options.epochs) {
    const SamplerOptions& of = sampler.options();
    throw UsageError(
        fmt::format("Loader: {} samples make no whole batch of {} ranks times {}: take a smaller batch, or pad",
                    of.samples, of.ranks, of.batch));
  }
}

}  // namespace

class Prefetcher::Implementation {
 public:
  Implementation(DistributedSampler sampler, const LoaderOptions& options, Fill fill)
      : sampler_(std::move(sampler)),
        options_(options),
        fill_(std::move(fill)),
        states_(slots(options)),
        handed_state_(sampler_.state()),
        thread_([this] { run(); }) {}

  ~Implementation() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    room_.notify_one();
    thread_.join();
  }

  std::optional<std::size_t> next() {
    std::unique_lock lock(mutex_);
    ready_.wait(lock, [&] { return filled_ > handed_ || ended_; });
    if (filled_ == handed_) {
      if (failure_) std::rethrow_exception(failure_);
      return std::nullopt;
    }
    const std::size_t slot = handed_ % states_.size();
    handed_state_ = states_[slot];
    ++handed_;
    room_.notify_one();
    return slot;
  }

  SamplerState state() const { return handed_state_; }

 private:
  void run() noexcept {
    std::exception_ptr failure;
    try {
      while (wait_for_room() && draw()) fill_next();
    } catch (...) {
      failure = std::current_exception();
    }
    const std::lock_guard lock(mutex_);
    failure_ = std::move(failure);
    ended_ = true;
    ready_.notify_one();
  }

  // Bounds how far ahead batches are filled. The slot of batch `filled_` was last that of batch filled_ - depth - keep,
  // which has been followed by `keep` more calls of next() once filled_ < handed_ + depth. False when it is time to
  // stop.
  bool wait_for_room() {
    std::unique_lock lock(mutex_);
    room_.wait(lock, [&] { return stopping_ || filled_ < handed_ + options_.depth; });
    return !stopping_;
  }

  // The next sample batch, from the next epoch where this one has ended. False after the last epoch.
  bool draw() {
    while (!sampler_.next(chosen_)) {
      if (options_.epochs && sampler_.epoch() + 1 >= *options_.epochs) return false;
      sampler_.set_epoch(sampler_.epoch() + 1);
    }
    return !options_.epochs || sampler_.epoch() < *options_.epochs;
  }

  void fill_next() {
    const std::size_t slot = filled_ % states_.size();  // written by this thread alone
    fill_(chosen_, slot);
    const std::lock_guard lock(mutex_);
    states_[slot] = sampler_.state();
    ++filled_;
    ready_.notify_one();
  }

  // Of the thread.
  DistributedSampler sampler_;
  const LoaderOptions options_;
  Fill fill_;
  SampleBatch chosen_;

  std::mutex mutex_;
  std::condition_variable room_;
  std::condition_variable ready_;
  std::vector<SamplerState> states_;  // of the sampler, after the batch in each slot
  std::size_t filled_ = 0;            // batches
  std::size_t handed_ = 0;
  bool stopping_ = false;
  bool ended_ = false;
  std::exception_ptr failure_;

  SamplerState handed_state_;  // of the caller's thread
  std::thread thread_;         // last: starts when everything else is there
};

Prefetcher::Prefetcher(DistributedSampler sampler, const LoaderOptions& options, Fill fill) {
  check(sampler, options);
  implementation_ = std::make_unique<Implementation>(std::move(sampler), options, std::move(fill));
}
Prefetcher::~Prefetcher() = default;

std::optional<std::size_t> Prefetcher::next() { return implementation_->next(); }
SamplerState Prefetcher::state() const { return implementation_->state(); }

}  // namespace tessera
