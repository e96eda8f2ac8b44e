// The threads behind a Loader. Batches are numbered from 0 in the order of the sampler; batch n stands in slot n %
// slots. A thread takes the next number together with its samples, fills, and takes the next.
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
  if (options.threads == 0) throw UsageError("Loader: threads must be above 0, but is 0");
  if (options.keep == 0) throw UsageError("Loader: keep must be above 0, but is 0");
  if (sampler.batches_per_epoch() == 0 && !options.epochs) {
    const SamplerOptions& of = sampler.options();
    const bool in_granules = of.granules != 0;
    throw UsageError(
        fmt::format("Loader: {} samples make no whole batch of {} {} times {}: take a smaller batch, or pad",
                    of.samples, in_granules ? of.granules : of.ranks, in_granules ? "granules" : "ranks", of.batch));
  }
}

}  // namespace

class Prefetcher::Implementation {
 public:
  Implementation(DistributedSampler sampler, const LoaderOptions& options, Fill fill)
      : options_(options),
        fill_(std::move(fill)),
        sampler_(std::move(sampler)),
        slots_(slots(options)),
        handed_state_(sampler_.state()) {
    try {
      for (std::size_t i = 0; i < options.threads; ++i) threads_.emplace_back([this] { run(); });
    } catch (...) {  // no more threads are to be had
      stop();
      throw;
    }
  }

  ~Implementation() { stop(); }

  std::optional<std::size_t> next() {
    std::unique_lock lock(mutex_);
    const std::size_t slot = handed_ % slots_.size();
    ready_.wait(lock, [&] { return slots_[slot].filled || handed_ == end_; });
    if (!slots_[slot].filled) {
      if (failure_) std::rethrow_exception(failure_);
      return std::nullopt;
    }
    slots_[slot].filled = false;
    handed_state_ = slots_[slot].state;
    ++handed_;
    room_.notify_one();
    return slot;
  }

  SamplerState state() const { return handed_state_; }

 private:
  static constexpr std::size_t never = ~std::size_t{0};

  struct Slot {
    bool filled = false;  // and not handed out
    SamplerState state;   // of the sampler, after the batch
  };

  void stop() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    room_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  void run() noexcept {
    SampleBatch chosen;
    while (const std::optional<std::size_t> batch = take(chosen)) {
      const std::size_t slot = *batch % slots_.size();
      try {
        fill_(chosen, slot);  // nobody else has this slot
      } catch (...) {
        end_at(*batch, std::current_exception());
        return;
      }
      const std::lock_guard lock(mutex_);
      slots_[slot].filled = true;
      ready_.notify_one();
    }
  }

  // The number of the next batch, and its samples; waits for room. The slot of batch n was last that of batch n - depth
  // - keep, which has been followed by `keep` more calls of next() once n < handed_ + depth. Nothing when it is time to
  // stop.
  std::optional<std::size_t> take(SampleBatch& chosen) {
    std::unique_lock lock(mutex_);
    room_.wait(lock, [&] { return stopping_ || taken_ >= end_ || taken_ < handed_ + options_.depth; });
    if (stopping_ || taken_ >= end_) return std::nullopt;
    try {
      if (!draw(chosen)) {
        end(taken_, nullptr);
        return std::nullopt;
      }
    } catch (...) {
      end(taken_, std::current_exception());
      return std::nullopt;
    }
    slots_[taken_ % slots_.size()].state = sampler_.state();
    return taken_++;
  }

  // The next sample batch, from the next epoch where this one has ended. False after the last epoch.
  bool draw(SampleBatch& chosen) {
    if (sampler_.batches_per_epoch() == 0) return false;  // in none of its epochs, however many there are
    while (!sampler_.next(chosen)) {
      if (options_.epochs && sampler_.epoch() + 1 >= *options_.epochs) return false;
      sampler_.set_epoch(sampler_.epoch() + 1);
    }
    return !options_.epochs || sampler_.epoch() < *options_.epochs;
  }

  void end_at(std::size_t batch, std::exception_ptr failure) {
    const std::lock_guard lock(mutex_);
    end(batch, std::move(failure));
  }
  // There are so many batches; of several failures the first batch's counts.
  void end(std::size_t batch, std::exception_ptr failure) {
    if (batch < end_) {
      end_ = batch;
      failure_ = std::move(failure);
    }
    ready_.notify_one();
    room_.notify_all();
  }

  const LoaderOptions options_;
  Fill fill_;

  std::mutex mutex_;
  std::condition_variable room_;
  std::condition_variable ready_;
  DistributedSampler sampler_;
  std::vector<Slot> slots_;
  std::size_t taken_ = 0;  // batches
  std::size_t handed_ = 0;
  std::size_t end_ = never;  // the number of batches, once it is known
  bool stopping_ = false;
  std::exception_ptr failure_;  // why they end

  SamplerState handed_state_;         // of the caller's thread
  std::vector<std::thread> threads_;  // last: they start when everything else is there
};

Prefetcher::Prefetcher(DistributedSampler sampler, const LoaderOptions& options, Fill fill) {
  check(sampler, options);
  implementation_ = std::make_unique<Implementation>(std::move(sampler), options, std::move(fill));
}
Prefetcher::~Prefetcher() = default;

std::optional<std::size_t> Prefetcher::next() { return implementation_->next(); }
SamplerState Prefetcher::state() const { return implementation_->state(); }

}  // namespace tessera
