// The ceiling of collectives among threads: the same copies and sums, by as many plain threads, between two meetings.
#pragma once

#include <barrier>
#include <cstddef>
#include <vector>

#include "tessera/comm/world.hpp"

namespace bench {

// One rank's view of what all ranks' threads share. Only where ranks are threads of one process.
class PlainThreads {
 public:
  // `data` [elements] is the whole buffer of this rank; elements are a multiple of 16 times the ranks. Collective.
  PlainThreads(tessera::World& world, float* data, std::size_t elements);
  ~PlainThreads();  // collective
  PlainThreads(const PlainThreads&) = delete;
  PlainThreads& operator=(const PlainThreads&) = delete;

  // These are the collectives of the same names; `streaming`: with stores past the caches.
  void all_gather(bool streaming);
  void reduce_scatter(float* result, bool streaming);

 private:
  tessera::World& world_;
  std::size_t rank_;
  std::size_t shard_;         // elements
  std::vector<float*> data_;  // of every rank
  std::barrier<>* barrier_;   // rank 0's
};

}  // namespace bench
