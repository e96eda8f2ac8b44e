// Sums over ranks in rank order: each contribution is read once, the sum stays in registers.
#include <stdexcept>

#include "kernels/cuda/cuda_table.hpp"
#include "kernels/cuda/format_switch.hpp"
#include "kernels/cuda/packs.cuh"

namespace tessera::kernels::cuda {
namespace {

using tessera::cuda::launch;

// Where contribution r begins.
struct Pointers {
  const void* of_rank[most_contributions];
  template <typename Type>
  __device__ const Type* at(std::size_t rank) const {
    return static_cast<const Type*>(of_rank[rank]);
  }
};
struct Stride {
  const void* first;
  std::size_t elements;
  template <typename Type>
  __device__ const Type* at(std::size_t rank) const {
    return static_cast<const Type*>(first) + rank * elements;
  }
};

struct SumSettings {
  std::size_t ranks;
  bool accumulate;
  float divisor;
};

template <Format format, typename Places>
struct SumElements {
  Places places;
  View<Format::fp32> result;
  SumSettings settings;

  __device__ View<format> contribution(std::size_t rank) const {
    using Type = typename Stored<format>::Type;
    return {const_cast<Type*>(places.template at<Type>(rank))};
  }
  __device__ float finished(float sum, float before) const {
    if (settings.accumulate) sum = before + sum;
    return settings.divisor == 1.0f ? sum : sum / settings.divisor;
  }
  __device__ void packed(std::size_t i) const {
    float sum[pack];
    float next[pack];
    contribution(0).get(i, sum);
    for (std::size_t rank = 1; rank < settings.ranks; ++rank) {
      contribution(rank).get(i, next);
      for (std::size_t k = 0; k < pack; ++k) sum[k] = sum[k] + next[k];
    }
    float before[pack] = {};
    if (settings.accumulate) result.get(i, before);
    for (std::size_t k = 0; k < pack; ++k) sum[k] = finished(sum[k], before[k]);
    result.set(i, sum);
  }
  __device__ void single(std::size_t i) const {
    float sum = contribution(0).get(i);
    for (std::size_t rank = 1; rank < settings.ranks; ++rank) sum = sum + contribution(rank).get(i);
    result.set(i, finished(sum, settings.accumulate ? result.get(i) : 0.0f));
  }
};

template <typename Body>
__global__ void run_sum(const Body body, std::size_t count, bool packs) {
  for_each_element(count, packs, body);
}

template <Format format, typename Places>
void sum(void* native, const RankedSumArguments& a, const Places& places, bool packs) {
  using Body = SumElements<format, Places>;
  const Body body{places, {a.result}, {a.ranks, a.accumulate, a.divisor}};
  launch(native, launch_for(a.count, packs), run_sum<Body>, body, a.count, packs);
}

}  // namespace

void ranked_sum(void* native, const RankedSumArguments& a) {
  if (a.ranks > most_contributions) throw InternalError("more contributions than a kernel takes pointers");
  if (a.count == 0) return;
  for_format(a.format, [&](auto type) {
    constexpr Format format = decltype(type)::value;
    Pointers places{};
    bool packs = packed<Format::fp32>(a.result);
    for (std::size_t rank = 0; rank < a.ranks; ++rank) {
      places.of_rank[rank] = a.contributions[rank];
      packs = packs && packed<format>(a.contributions[rank]);
    }
    sum<format>(native, a, places, packs);
  });
}

void strided_ranked_sum(void* native, const RankedSumArguments& a, const void* first, std::size_t stride) {
  if (a.count == 0) return;
  for_format(a.format, [&](auto type) {
    constexpr Format format = decltype(type)::value;
    const bool packs = packed<Format::fp32>(a.result) && packed<format>(first) && stride % pack == 0;
    sum<format>(native, a, Stride{first, stride}, packs);
  });
}

}  // namespace tessera::kernels::cuda
