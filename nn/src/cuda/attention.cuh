// Attention's kernels share these: where a block's tile of one head stands, the mask's factors, and shared memory.
//
// Probabilities exist in tiles of queries × keys alone, formed again in backward from each row's statistic, the logarithm
// of its sum of exponentials (Dao et al. 2022, FlashAttention). Sums run over tiles in their order, so that nothing
// depends on timing: the gradient of q is a kernel of its own, as are those of k and v.
#pragma once

#include <cstddef>

#include "src/cuda/cuda_layers.hpp"
#include "src/cuda/elements.cuh"
#include "src/cuda/mask.cuh"
#include "tessera/device/cuda_launch.cuh"

namespace tessera::nn::cuda {

// One head of one sequence, and which of its tiles: those with the most work come first.
struct TileOfHead {
  __device__ TileOfHead(const AttentionTiles& a, std::size_t tiles, bool last_first) {
    const auto heads = static_cast<unsigned>(a.heads);
    const unsigned pairs = static_cast<unsigned>(a.sequences) * heads;
    const unsigned rank = blockIdx.x / pairs;
    tile = last_first ? static_cast<unsigned>(tiles) - 1 - rank : rank;
    sequence = blockIdx.x % pairs / heads;
    head = blockIdx.x % heads;
  }
  unsigned tile;
  unsigned sequence;
  unsigned head;
};

// Part 0, 1 or 2: q, k or v; or their gradients.
template <typename T>
__device__ T* part_of_qkv(T* qkv, const AttentionTiles& a, const TileOfHead& at, std::size_t part) {
  const std::size_t dim = a.heads * a.head_dim;
  return qkv + at.sequence * a.sequence * 3 * dim + part * dim + at.head * a.head_dim;
}

__device__ inline std::size_t statistic_of(const AttentionTiles& a, const TileOfHead& at) {
  return (at.sequence * a.heads + at.head) * a.sequence;
}

// How many of its sequence's keys a query knows: the first ones.
struct KnownKeys {
  __device__ explicit KnownKeys(const AttentionTiles& a)
      : causal(a.causal), sequence(static_cast<unsigned>(a.sequence)) {}
  __device__ unsigned of(unsigned query) const { return causal && query < sequence ? query + 1 : sequence; }
  bool causal;
  unsigned sequence;
};

// The mask's row of a query.
__device__ inline std::uint64_t mask_row_of(const AttentionTiles& a, const TileOfHead& at, std::size_t query) {
  return a.mask.first_row + (at.sequence * a.sequence + query) * a.mask_step + at.head;
}

__host__ __device__ inline bool drops(const AttentionTiles& a) { return a.mask.drop_below != 0; }

// ---- the dynamic shared memory of a block ----

inline constexpr std::size_t most_shared_bytes = 160 * 1024;  // what sm_80 and sm_90 give a block, if asked

// The part that begins `offset` bytes behind the start, which lies on 128 bytes. On the emulated device parts lie apart, and
// end where they say.
__device__ inline unsigned char* dynamic_shared(std::size_t offset, [[maybe_unused]] std::size_t bytes) {
#if defined(__CUDACC__)
  extern __shared__ __align__(128) unsigned char memory[];
  return memory + offset;
#else
  return reinterpret_cast<unsigned char*>(::emulated::shared_part(nullptr, offset, bytes));
#endif
}

// For a kernel whose blocks take more shared memory than every kernel may: asks the runtime once on each device.
void allow_shared(const void* kernel, std::size_t bytes);

// attention_tensor.cu: of bf16 and fp16. Backward finds the deltas formed.
void tensor_attention_forward(void* native, const AttentionTiles& a);
void tensor_attention_backward(void* native, const AttentionTiles& a);

}  // namespace tessera::nn::cuda
