// Which samples each rank gets, and in which order.
#include "tessera/data/sampler.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "data/permutation.hpp"
#include "tessera/base/error.hpp"

namespace tessera {

namespace {

void check(const SamplerOptions& options) {
  if (options.ranks == 0) throw UsageError("DistributedSampler: ranks must be above 0, but is 0");
  if (options.batch == 0) throw UsageError("DistributedSampler: batch must be above 0, but is 0");
  if (options.rank >= options.ranks) {
    throw UsageError(
        fmt::format("DistributedSampler: rank must be below the {} ranks, but is {}", options.ranks, options.rank));
  }
  if (options.granules != 0 && options.ranks > options.granules) {
    throw UsageError(fmt::format(
        "DistributedSampler: {} ranks cannot share {} granule{}: take at most as many ranks, or more granules",
        options.ranks, options.granules, options.granules == 1 ? "" : "s"));
  }
  const bool in_granules = options.granules != 0;
  if (options.batch > std::numeric_limits<std::size_t>::max() / (in_granules ? options.granules : options.ranks)) {
    throw UsageError(fmt::format("DistributedSampler: {} {} times a batch of {} is too large",
                                 in_granules ? options.granules : options.ranks, in_granules ? "granules" : "ranks",
                                 options.batch));
  }
}

}  // namespace

DistributedSampler::DistributedSampler(SamplerOptions options) : options_(options) { check(options_); }

DistributedSampler::DistributedSampler(const World& world, SamplerOptions options)
    : DistributedSampler([&] {
        if (options.granules != 0) {
          throw UsageError(
              "DistributedSampler: with granules a rank's place among those that share them is the model's, not its "
              "number: give the model's granules() in place of the World");
        }
        options.ranks = static_cast<std::size_t>(world.size());
        options.rank = static_cast<std::size_t>(world.rank());
        return options;
      }()) {}

DistributedSampler::DistributedSampler(const Granules& granules, SamplerOptions options)
    : DistributedSampler([&] {
        options.granules = granules.total;
        options.ranks = granules.ranks;
        options.rank = granules.rank;
        return options;
      }()) {}

void DistributedSampler::set_epoch(std::uint64_t epoch) {
  epoch_ = epoch;
  position_ = 0;
}

std::size_t DistributedSampler::batches_per_epoch() const {
  const std::size_t whole = options_.samples / global_batch();
  const bool has_tail = options_.samples % global_batch() != 0;
  return whole + (has_tail && options_.tail == Tail::pad ? 1 : 0);
}

bool DistributedSampler::next(SampleBatch& batch) {
  const std::size_t left = options_.samples - position_;
  if (left == 0 || (left < global_batch() && options_.tail == Tail::drop)) return false;
  const Granules runs = this->runs();
  batch.indices.resize(runs.mine() * options_.batch);
  batch.weights.resize(batch.indices.size());
  batch.epoch = epoch_;
  batch.global_samples = std::min(left, global_batch());
  const data::Permutation order(options_.samples, options_.seed, epoch_);
  for (std::size_t i = 0; i < batch.indices.size(); ++i) {
    const std::size_t at = runs.number(i / options_.batch) * options_.batch + i % options_.batch;
    const bool real = at < left;
    // Repeats come from the epoch's beginning, where every rank finds some.
    const std::size_t place = real ? position_ + at : (at - left) % options_.samples;
    batch.indices[i] = options_.shuffle ? order[place] : place;
    batch.weights[i] = real ? 1.0f : 0.0f;
  }
  position_ += batch.global_samples;
  return true;
}

SamplerState DistributedSampler::state() const {
  return {.samples = options_.samples,
          .seed = options_.seed,
          .epoch = epoch_,
          .position = position_,
          .order = options_.shuffle ? sampler_order : unshuffled_order};
}

void DistributedSampler::restore(const SamplerState& state) {
  if (state.samples != options_.samples || state.seed != options_.seed) {
    throw UsageError(
        fmt::format("DistributedSampler: the state is of {} samples and seed {}, but this sampler has {} and {}",
                    state.samples, state.seed, options_.samples, options_.seed));
  }
  if (state.position > state.samples) {
    throw UsageError(fmt::format("DistributedSampler: the state's position {} is beyond its {} samples", state.position,
                                 state.samples));
  }
  const bool within_epoch = state.position > 0 && state.position < state.samples;
  const bool was_shuffled = state.order != unshuffled_order;
  if (was_shuffled != options_.shuffle && within_epoch) {
    throw UsageError(fmt::format(
        "DistributedSampler: the state is {} samples into an epoch of {} {}, and this sampler {}: some samples would "
        "come twice and others never. Give the same SamplerOptions::shuffle{}",
        state.position, state.samples, was_shuffled ? "in a shuffled order" : "in the data set's order",
        options_.shuffle ? "shuffles" : "does not",
        was_shuffled ? " (states that Tessera saved before it told the two apart say order 2 in any case: set "
                       "SamplerState::order to 0 where you know that nothing was shuffled)"
                     : ""));
  }
  if (state.order != sampler_order && options_.shuffle && within_epoch) {
    throw UsageError(fmt::format(
        "DistributedSampler: the state is {} samples into an epoch of {}, in an order (version {}) that this "
        "version of Tessera draws no more (version {}): end that epoch with the version that began it",
        state.position, state.samples, state.order, sampler_order));
  }
  set_epoch(state.epoch);
  position_ = state.position;
}

}  // namespace tessera
