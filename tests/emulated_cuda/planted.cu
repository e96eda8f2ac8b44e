// Small kernels, each sound or with a fault planted: what the emulated device is there to find. planted_test.py runs
// them.
//
// usage: planted NAME sound|faulty; exits with 1 where a result is wrong.
#include <cuda_runtime.h>

#include <cstdio>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "fibers.hpp"

namespace {

constexpr unsigned threads = 64;
constexpr unsigned blocks = 3;
constexpr unsigned whole_warp = 0xffffffffu;

// Every kernel does the same: out becomes each block's numbers from the last to the first, and counts[b] is b + 1.
struct Data {
  const int* in;
  int* out;
  int* counts;  // [blocks] zeros
  bool sound;

  __device__ int own() const { return in[blockIdx.x * threads + threadIdx.x]; }
  __device__ void set_mirrored(unsigned thread, int value) const {
    out[blockIdx.x * threads + threads - 1 - thread] = value;
  }
  __device__ void set_count() const {
    if (threadIdx.x == 0) counts[blockIdx.x] = static_cast<int>(blockIdx.x) + 1;
  }
};

__global__ void missing_barrier(const Data a) {
  __shared__ int near[threads];
  near[threadIdx.x] = a.own();
  if (a.sound) __syncthreads();
  const unsigned other = threads - 1 - threadIdx.x;
  a.set_mirrored(other, near[other]);
  a.set_count();
}

__global__ void overwritten_too_early(const Data a) {
  __shared__ int near[threads];
  const unsigned other = threads - 1 - threadIdx.x;
  for (int round = 0; round < 3; ++round) {
    near[threadIdx.x] = a.own() + round;
    __syncthreads();
    if (round == 0) a.set_mirrored(other, near[other]);
    if (a.sound) __syncthreads();
  }
  a.set_count();
}

// Nobody overwrites before its warp has met often, so other warps have read long ago, unless they are late.
__global__ void overwritten_by_a_warp_ahead(const Data a) {
  __shared__ int near[threads];
  near[threadIdx.x] = a.own();
  __syncthreads();
  const unsigned other = threads - 1 - threadIdx.x;
  a.set_mirrored(other, near[other]);
  if (a.sound) __syncthreads();
  int sum = a.own();
  for (int lane = 1; lane < 32; ++lane) sum += __shfl_xor_sync(whole_warp, a.own(), lane);
  near[threadIdx.x] = sum;
  a.set_count();
}

__global__ void missing_warp_barrier(const Data a) {
  __shared__ int near[threads];
  near[threadIdx.x] = a.own();
  if (a.sound) __syncwarp();
  const unsigned other = threadIdx.x ^ 31;
  a.set_mirrored(other, near[other]);
  a.set_count();
}

__global__ void race_between_blocks(const Data a) {
  a.set_mirrored(threadIdx.x, a.own());
  if (threadIdx.x != 0) return;
  for (unsigned b = blockIdx.x; b < blocks; ++b) {
    if (a.sound) {
      atomicAdd(&a.counts[b], 1);
    } else {
      a.counts[b] += 1;
    }
  }
}

__global__ void counts_on_the_block_before(const Data a) {
  a.set_mirrored(threadIdx.x, a.own());
  if (threadIdx.x != 0) return;
  const bool first = a.sound || blockIdx.x == 0;
  a.counts[blockIdx.x] = first ? static_cast<int>(blockIdx.x) + 1 : a.counts[blockIdx.x - 1] + 1;
}

__global__ void mask_without_the_lane(const Data a) {
  const unsigned mask = a.sound ? whole_warp : whole_warp - 1;
  a.set_mirrored(threadIdx.x ^ 31, __shfl_xor_sync(mask, a.own(), 31));
  a.set_count();
}

__global__ void lanes_that_do_not_come(const Data a) {
  int value = a.in[blockIdx.x * threads + (threadIdx.x ^ 31)];
  if (a.sound || threadIdx.x % 32 < 16) value = __shfl_xor_sync(whole_warp, a.own(), 31);
  __syncthreads();
  a.set_mirrored(threadIdx.x ^ 31, value);
  a.set_count();
}

__global__ void lane_that_has_ended(const Data a) {
  if (threadIdx.x % 32 == 5) a.set_mirrored(threadIdx.x ^ 31, a.in[blockIdx.x * threads + (threadIdx.x ^ 31)]);
  if (threadIdx.x % 32 == 5 && !a.sound) return;
  a.set_mirrored(threadIdx.x ^ 31, __shfl_xor_sync(whole_warp, a.own(), 31));
  a.set_count();
}

// The largest of four neighbours; numbers grow.
__global__ void width_left_out(const Data a) {
  int value = a.own();
  const int below = __shfl_down_sync(whole_warp, value, 2, a.sound ? 4 : 32);
  const int largest = below > value + 2 ? -1 : below;
  a.set_mirrored(threadIdx.x, threadIdx.x % 4 < 2 || largest == value ? value : -1);
  a.set_count();
}

__global__ void odd_width(const Data a) {
  a.set_mirrored(threadIdx.x ^ 31,
                 __shfl_sync(whole_warp, a.own(), static_cast<int>(threadIdx.x % 32 ^ 31), a.sound ? 32 : 31));
  a.set_count();
}

__global__ void part_one_element_short(const Data a) {
  const std::size_t bytes = (threads - (a.sound ? 0 : 1)) * sizeof(int);
  int* const near = reinterpret_cast<int*>(::emulated::shared_part(nullptr, 0, bytes));
  near[threadIdx.x] = a.own();
  __syncthreads();
  const unsigned other = threads - 1 - threadIdx.x;
  a.set_mirrored(other, near[other]);
  a.set_count();
}

__global__ void launch_gives_too_little(const Data a) {
  const std::size_t first = a.sound ? 0 : 128;
  int* const near = reinterpret_cast<int*>(::emulated::shared_part(nullptr, first, threads * sizeof(int)));
  near[threadIdx.x] = a.own();
  __syncthreads();
  const unsigned other = threads - 1 - threadIdx.x;
  a.set_mirrored(other, near[other]);
  a.set_count();
}

__global__ void counts_on_zeros(const Data a) {
  __shared__ int count;
  if (a.sound && threadIdx.x == 0) count = 0;
  __syncthreads();
  atomicAdd(&count, 1);
  __syncthreads();
  a.set_mirrored(threadIdx.x, a.own());
  if (threadIdx.x == 0) a.counts[blockIdx.x] = count == threads ? static_cast<int>(blockIdx.x) + 1 : -1;
}

struct alignas(16) Four {
  int element[4];
};

__global__ void misaligned_load(const Data a) {
  const unsigned four = threadIdx.x / 4 * 4;
  const unsigned back = a.sound || four == 0 ? 0 : 1;
  const Four values = *reinterpret_cast<const Four*>(a.in + blockIdx.x * threads + four - back);
  const unsigned place = threadIdx.x % 4 + back;
  a.set_mirrored(threadIdx.x, place < 4 ? values.element[place] : a.own());
  a.set_count();
}

const std::map<std::string, void (*)(Data)> kernels = {
    {"missing_barrier", missing_barrier},
    {"overwritten_too_early", overwritten_too_early},
    {"overwritten_by_a_warp_ahead", overwritten_by_a_warp_ahead},
    {"missing_warp_barrier", missing_warp_barrier},
    {"race_between_blocks", race_between_blocks},
    {"counts_on_the_block_before", counts_on_the_block_before},
    {"mask_without_the_lane", mask_without_the_lane},
    {"lanes_that_do_not_come", lanes_that_do_not_come},
    {"lane_that_has_ended", lane_that_has_ended},
    {"width_left_out", width_left_out},
    {"odd_width", odd_width},
    {"part_one_element_short", part_one_element_short},
    {"launch_gives_too_little", launch_gives_too_little},
    {"counts_on_zeros", counts_on_zeros},
    {"misaligned_load", misaligned_load},
};

}  // namespace

int main(int, char** argv) {
  alignas(16) static int in[blocks * threads];
  std::iota(in, in + blocks * threads, 100);
  std::vector<int> out(blocks * threads), counts(blocks);
  const Data data{in, out.data(), counts.data(), std::string(argv[2]) == "sound"};
  const auto kernel = kernels.at(argv[1]);
  emulated::run_grid({.gridDim = {blocks}, .blockDim = {threads}, .dynamicSmemBytes = threads * sizeof(int)},
                     [=] { kernel(data); });
  for (unsigned i = 0; i < blocks * threads; ++i) {
    if (out[i] == in[i / threads * threads + threads - 1 - i % threads]) continue;
    std::printf("element %u is %d\n", i, out[i]);
    return 1;
  }
  for (unsigned b = 0; b < blocks; ++b) {
    if (counts[b] == static_cast<int>(b) + 1) continue;
    std::printf("count %u is %d\n", b, counts[b]);
    return 1;
  }
  return 0;
}
