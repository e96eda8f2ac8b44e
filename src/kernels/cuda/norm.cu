// The squared norm in norm.hpp's order. Four threads share a block of 1,024 elements, each with four of its 16 lanes, so
// that every access is 16 bytes; blocks go to fp64 lanes in turn, and the last kernel adds the lanes up in pairs.
#include "kernels/cuda/cuda_table.hpp"
#include "kernels/cuda/packs.cuh"
#include "tessera/kernels/norm.hpp"

namespace tessera::kernels::cuda {
namespace {

using tessera::cuda::launch;

constexpr unsigned threads_per_lane = 4;
constexpr unsigned block_threads = 256;

// The elements i … i + 3, with zeros behind the end.
__device__ void read(const NormArguments& a, std::size_t i, bool packs, float (&values)[pack]) {
  if (packs && i + pack <= a.count) return View<Format::fp32>{const_cast<float*>(a.data)}.get(i, values);
  for (std::size_t k = 0; k < pack; ++k) values[k] = i + k < a.count ? a.data[i + k] : 0.0f;
}

// This thread's four lanes of the block at `begin`.
__device__ void add_squares(const NormArguments& a, std::size_t begin, bool packs, float (&sum)[pack]) {
  for (std::size_t k = 0; k < pack; ++k) sum[k] = 0.0f;
  const std::size_t end = begin + norm_block < a.count ? begin + norm_block : a.count;
#pragma unroll 8
  for (std::size_t i = begin + threadIdx.x % threads_per_lane * pack; i < end; i += threads_per_lane * pack) {
    float x[pack];
    read(a, i, packs, x);
    for (std::size_t k = 0; k < pack; ++k) sum[k] = sum[k] + x[k] * x[k];
  }
}

// The lanes k and k + 8, k and k + 4 (other threads), k and k + 2, k and k + 1 (this thread's own).
__device__ float pairwise(const float (&sum)[pack]) {
  float four[pack];
  for (std::size_t k = 0; k < pack; ++k) {
    const float eight = sum[k] + __shfl_down_sync(0xffffffffu, sum[k], 2, threads_per_lane);
    four[k] = eight + __shfl_down_sync(0xffffffffu, eight, 1, threads_per_lane);
  }
  return (four[0] + four[2]) + (four[1] + four[3]);
}

// `lanes` in use: a power of two, norm_lanes or at least the number of blocks.
__global__ void add_blocks(const NormArguments a, std::size_t lanes, bool packs) {
  const std::size_t lane = (static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x) / threads_per_lane;
  const std::size_t blocks = (a.count + norm_block - 1) / norm_block;
  double sum = 0.0;
  for (std::size_t round = 0; round * lanes < blocks; ++round) {  // all threads alike: a warp shuffles together
    const std::size_t block = round * lanes + lane;
    float squares[pack];
    add_squares(a, block * norm_block, packs, squares);
    const float total = pairwise(squares);
    if (block < blocks) sum += static_cast<double>(total);
  }
  if (threadIdx.x % threads_per_lane == 0) a.lanes[lane] = sum;
}

// Lanes k and k + half, for halves from the largest down. Lanes beyond those in use are zeros, which change no sum.
__global__ void add_lanes(double* lanes, std::size_t used, double* result) {
  for (std::size_t half = used / 2; half > 0; half /= 2) {
    for (std::size_t k = threadIdx.x; k < half; k += blockDim.x) lanes[k] += lanes[k + half];
    __syncthreads();
  }
  if (threadIdx.x == 0) *result = lanes[0];
}

}  // namespace

void sum_of_squares(void* native, const NormArguments& a) {
  std::size_t lanes = block_threads / threads_per_lane;
  while (lanes < norm_lanes && lanes * norm_block < a.count) lanes *= 2;
  const auto blocks = static_cast<unsigned>(lanes * threads_per_lane / block_threads);
  const bool packs = packed<Format::fp32>(a.data);
  launch(native, {.blocks = dim3(blocks), .threads = block_threads}, add_blocks, a, lanes, packs);
  const auto pairs = static_cast<unsigned>(lanes / 2);
  launch(native, {.threads = pairs < 1024 ? pairs : 1024}, add_lanes, a.lanes, lanes, a.result);
}

}  // namespace tessera::kernels::cuda
