// The threads behind a Loader: they draw sample batches from a sampler and have the slots of a ring filled ahead of
// their use. They know slots by number only; Loader keeps the batches.
//
// Thread safety: one thread calls next() and state(); `fill` runs on the prefetcher's own threads, for several slots at
// once when there are several.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "tessera/data/sampler.hpp"

#pragma GCC visibility push(default)

namespace tessera {

struct LoaderOptions {
  std::size_t depth = 2;  // batches filled ahead; > 0
  // A batch stays valid until next() was called `keep` more times; > 0. More than 1 where queued work still reads
  // batches of earlier calls.
  std::size_t keep = 1;
  // That fill batches, each one at a time; > 0. More than 1 where a batch takes longer to fill than to train on; the
  // batches and their order are the same.
  std::size_t threads = 1;
  // Ends after this many epochs, counted from epoch 0, so that a restored sampler ends at the same place. Default:
  // never.
  std::optional<std::size_t> epochs = std::nullopt;
};

class Prefetcher {
 public:
  using Fill = std::function<void(const SampleBatch& chosen, std::size_t slot)>;

  // Starts filling at once, from where the sampler stands. Throws UsageError for a depth, keep or threads of 0, and for
  // a sampler without batches that would never end.
  Prefetcher(DistributedSampler sampler, const LoaderOptions& options, Fill fill);
  Prefetcher(const Prefetcher&) = delete;
  Prefetcher& operator=(const Prefetcher&) = delete;
  ~Prefetcher();  // waits for the fills that run, if any; drops what was filled ahead

  // The slot of the next batch; waits until it is filled. Nothing at the end. Throws what `fill` threw, when the
  // batches filled before are used up, and again at each call after that.
  std::optional<std::size_t> next();

  // The sampler's state after the batches that next() handed out, however many are filled ahead.
  SamplerState state() const;

  static std::size_t slots(const LoaderOptions& options) { return options.depth + options.keep; }

 private:
  class [[gnu::visibility("hidden")]] Implementation;
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace tessera

#pragma GCC visibility pop
