// Which held-out samples an evaluation looks at, and how a rank's part of them is cut into passes.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "tessera/comm/world.hpp"
#include "tessera/data/sampler.hpp"
#include "tessera/trainer/run_options.hpp"

#pragma GCC visibility push(default)

namespace tessera::trainer {

// Called after each pass of an evaluation.
using PassDone = std::function<void(std::size_t done, std::size_t passes)>;

// All samples, or as many as --eval-batches allows, spread evenly. Every rank takes a slice of them and makes the same
// number of passes, also with a shorter slice than others', or none. With --granules a pass has samples that do not
// depend on the ranks: pass p of rank r of N is the (p · N + r)-th run of --batch samples.
class HeldOutSlice {
 public:
  // The slice is one of `count` samples; a pass takes --batch of them at most.
  HeldOutSlice(std::size_t count, const tessera::World& world, const RunOptions& options);

  std::size_t used() const { return used_; }  // samples of an evaluation, over all ranks
  std::size_t passes() const { return passes_; }
  // The samples of a pass, offset by `first`; there may be none.
  const tessera::SampleBatch& samples(std::size_t pass, std::size_t first);

 private:
  std::size_t count_;
  std::size_t rows_;
  std::size_t used_;
  std::size_t begin_;
  std::size_t end_;
  std::size_t stride_;  // from one pass's first sample to the next one's
  std::size_t passes_;
  tessera::SampleBatch chosen_;
};

// A sum over an evaluation's passes and all ranks: each rank's passes and then ranks in their order; with --granules
// passes in the order of their samples, so that any number of ranks has the same bits.
class HeldOutSum {
 public:
  explicit HeldOutSum(const RunOptions& options)
      : by_pass_(options.granules > 0), ranks_of_slice_(options.ranks_of_job() / options.data_ranks()) {}

  void add(double of_pass);  // once in each pass, also where that has no samples
  double over_ranks(tessera::World& world, const char* label) const;  // collective

 private:
  bool by_pass_;
  std::size_t ranks_of_slice_;  // that have the same samples
  std::vector<double> parts_;   // by pass, or all of them in one
};

}  // namespace tessera::trainer

#pragma GCC visibility pop
