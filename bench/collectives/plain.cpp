// Pointers travel between ranks as bytes.
#include "collectives/plain.hpp"

#include <cstring>

#include "measure/bandwidth.hpp"
#include "tessera/trainer/gather_values.hpp"

namespace bench {

namespace {

// Everybody's pointer, by rank.
template <typename T>
std::vector<T*> pointers_of(tessera::World& world, T* mine) {
  return tessera::trainer::gather_value(world, mine, "pointers");
}

}  // namespace

PlainThreads::PlainThreads(tessera::World& world, float* data, std::size_t elements)
    : world_(world),
      rank_(static_cast<std::size_t>(world.rank())),
      shard_(elements / static_cast<std::size_t>(world.size())),
      data_(pointers_of(world, data)) {
  barrier_ = pointers_of(world, rank_ == 0 ? new std::barrier<>(world.size()) : nullptr).front();
}

PlainThreads::~PlainThreads() {
  world_.barrier("plain threads end");
  if (rank_ == 0) delete barrier_;
}

void PlainThreads::all_gather(bool streaming) {
  for (std::size_t step = 1; step < data_.size(); ++step) {
    const std::size_t peer = (rank_ + step) % data_.size();
    float* const to = data_[rank_] + peer * shard_;
    const float* const from = data_[peer] + peer * shard_;
    if (streaming) copy_streaming(to, from, shard_);
    if (!streaming) std::memcpy(to, from, shard_ * sizeof(float));
  }
  barrier_->arrive_and_wait();
}

void PlainThreads::reduce_scatter(float* result, bool streaming) {
  std::vector<const float*> parts;
  for (const float* data : data_) parts.push_back(data + rank_ * shard_);
  const Sum of{result, parts.data(), parts.size(), shard_};
  (streaming ? sum_streaming : sum)(of);
  barrier_->arrive_and_wait();
}

}  // namespace bench
