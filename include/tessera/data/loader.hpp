// Fills batches on threads of its own, ahead of the training loop. Goes from epoch to epoch by itself.
//
//   tessera::Loader<LabelledBatch> loader(sampler, {.depth = 2}, [&](const SampleBatch& chosen, LabelledBatch& batch) {
//     data.read(chosen, batch);
//   });
//   while (const LabelledBatch* batch = loader.next()) { … }
//
// Batches are reused: once each was filled, and if `fill` allocates nothing, the loader allocates nothing.
// Thread safety: one thread uses a loader; `fill` runs on others, on several at once with LoaderOptions::threads.
// Destruction at any moment stops them.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "tessera/data/prefetcher.hpp"
#include "tessera/data/sampler.hpp"

#pragma GCC visibility push(default)

namespace tessera {

template <typename Batch>
class Loader {
 public:
  using Fill = std::function<void(const SampleBatch& chosen, Batch& batch)>;

  // Starts at once, from where the sampler stands. Throws as Prefetcher does.
  Loader(DistributedSampler sampler, const LoaderOptions& options, Fill fill)
      : fill_(std::move(fill)),
        batches_(Prefetcher::slots(options)),
        prefetcher_(std::move(sampler), options,
                    [this](const SampleBatch& chosen, std::size_t slot) { fill_(chosen, batches_[slot]); }) {}

  // The next batch, valid until next() was called LoaderOptions::keep more times; null at the end. Waits for it. Throws
  // what `fill` threw.
  const Batch* next() {
    const std::optional<std::size_t> slot = prefetcher_.next();
    return slot ? &batches_[*slot] : nullptr;
  }

  // Where a new loader must start to continue after the batches that next() returned.
  SamplerState state() const { return prefetcher_.state(); }

 private:
  Fill fill_;
  std::vector<Batch> batches_;
  Prefetcher prefetcher_;  // last: its threads end before the batches do
};

}  // namespace tessera

#pragma GCC visibility pop
