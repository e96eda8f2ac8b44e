// Deals the samples of a data set to ranks: in an epoch each sample goes to exactly one rank, once, in an order that
// depends on (seed, epoch) alone and not on the number of ranks.
//
// The order is cut into global batches of ranks × batch samples, and each global batch into one run per rank: a batch
// of 6 on 1 rank and of 2 on 3 ranks see the same samples at each step, in the same order from rank to rank.
//
// With granules (plan/granules.hpp) a global batch is granules × batch samples whatever the ranks, cut into one run per
// granule. A rank gets the runs of its granules, and each granule of a step has the same samples on any ranks.
//
// The order is computed, not stored, so a sampler takes a few bytes, whatever the size of the data set.
//
// Thread safety: none. Allocates in the first next() of a SampleBatch only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tessera/comm/world.hpp"
#include "tessera/plan/granules.hpp"

#pragma GCC visibility push(default)

namespace tessera {

// The tail is the samples that do not fill a last global batch.
enum class Tail {
  drop,  // they are left out of this epoch (which ones differs from epoch to epoch when shuffled)
  pad,   // they come, and the batch is filled up with repeats of weight 0
};

struct SamplerOptions {
  std::size_t samples = 0;  // size of the data set
  std::size_t ranks = 1;
  std::size_t rank = 0;
  std::size_t batch = 1;     // samples per rank, or per granule
  std::size_t granules = 0;  // of a step, over all ranks; 0: steps have none
  std::uint64_t seed = 0;
  bool shuffle = true;
  Tail tail = Tail::drop;
};

// One rank's part of a global batch. The vectors keep their capacity when it is filled again.
struct SampleBatch {
  // Numbers of samples: always SamplerOptions::batch of them, or as many for each granule of this rank, in their order.
  std::vector<std::size_t> indices;
  std::vector<float> weights;  // 1, or 0 for a repeat that only fills up
  std::uint64_t epoch = 0;
  std::size_t global_samples = 0;  // samples of weight 1 in the global batch, over all ranks
};

// How (seed, epoch) become an order: 1 was a stored permutation, 2 is a computed one, 0 is the data set's own order, of
// a sampler that does not shuffle.
inline constexpr std::uint64_t sampler_order = 2;
inline constexpr std::uint64_t unshuffled_order = 0;

// Where a sampler stands: everything that a checkpoint needs. Independent of ranks, granules and batch size.
struct SamplerState {
  std::uint64_t samples = 0;
  std::uint64_t seed = 0;
  std::uint64_t epoch = 0;
  std::uint64_t position = 0;  // samples of this epoch that were dealt, over all ranks
  std::uint64_t order = sampler_order;
  friend bool operator==(const SamplerState&, const SamplerState&) = default;
};

class DistributedSampler {
 public:
  explicit DistributedSampler(SamplerOptions options);  // epoch 0; throws UsageError naming the option
  // This rank's: `ranks` and `rank` of the options are the World's. Not with granules, whose order is that of shards
  // and not of ranks' numbers: UsageError.
  DistributedSampler(const World& world, SamplerOptions options);
  // For the granules of a model (FullyShard::granules(), once it is finished): `granules`, `ranks` and `rank` are
  // these.
  DistributedSampler(const Granules& granules, SamplerOptions options);

  // Fills `batch` with this rank's part of the next global batch. False, and `batch` as it was, at the end of the
  // epoch.
  bool next(SampleBatch& batch);

  void set_epoch(std::uint64_t epoch);  // from its start, in an order of its own
  std::uint64_t epoch() const { return epoch_; }
  std::size_t batches_per_epoch() const;  // global batches; each rank gets a part of each

  SamplerState state() const;
  // Continues where `state` was taken, also with other ranks and another batch. Throws UsageError when it is another
  // data set's or another seed's, or in the middle of an epoch in another order: one that is drawn no more, or of a
  // sampler that shuffles where this one does not.
  void restore(const SamplerState& state);

  const SamplerOptions& options() const { return options_; }

 private:
  // A global batch is cut into these runs of `batch` samples: its granules, or one for each rank.
  Granules runs() const {
    return {.total = options_.granules != 0 ? options_.granules : options_.ranks,
            .ranks = options_.ranks,
            .rank = options_.rank};
  }
  std::size_t global_batch() const { return runs().total * options_.batch; }

  SamplerOptions options_;
  std::uint64_t epoch_ = 0;
  std::size_t position_ = 0;
};

}  // namespace tessera

#pragma GCC visibility pop
