// Attention's operations as its CUDA kernels take them.
#pragma once

#include <fmt/format.h>

#include <cmath>

#include "src/cuda/attention_choice.hpp"
#include "src/cuda/cuda_layers.hpp"
#include "src/operation.hpp"
#include "src/rows/active_rows.hpp"
#include "tessera/base/error.hpp"
#include "tessera/nn/attention.hpp"

namespace tessera::nn {

// Throws UsageError for heads that do not fit into a block's shared memory. The mask is that of all rows.
template <Element T>
cuda::AttentionTiles tiles_of(const AttentionShape& shape, MatrixView<const T> qkv, const DropoutMask& mask) {
  if (shape.head_dim > cuda::largest_head) {
    throw UsageError(fmt::format("attention: heads of {} are too wide for CUDA devices: {} at most; use more heads",
                                 shape.head_dim, cuda::largest_head));
  }
  cuda::attentions::active();  // a wrong wish is the caller's error
  return {.format = format_of<T>,
          .sequences = shape.sequences,
          .sequence = shape.sequence,
          .heads = shape.heads,
          .head_dim = shape.head_dim,
          .queries = shape.sequence,
          .scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(shape.head_dim))),
          .causal = shape.causal,
          .mask = mask,
          .mask_step = shape.mask_step(),
          .qkv = qkv.data};
}

template <Element T>
cuda::AttentionTiles tiles_of(const AttentionForward<T>& of, const DropoutMask& mask) {
  cuda::AttentionTiles tiles = tiles_of(of.shape, of.qkv, mask);
  tiles.queries = of.queries == 0 ? of.shape.sequence : of.queries;
  tiles.out = of.out.data;
  tiles.statistics = reinterpret_cast<float*>(of.statistics);
  if (of.scratch != nullptr) tiles.scratch = {of.scratch, cuda::attentions::forward_scratch_bytes(tiles)};
  return tiles;
}

template <Element T>
cuda::AttentionTiles tiles_of(const AttentionBackward<T>& of, const DropoutMask& mask) {
  require_shape("attention: out", of.out, of.shape.rows(), of.shape.dim());
  cuda::AttentionTiles tiles = tiles_of(of.shape, of.qkv, mask);
  tiles.out = const_cast<T*>(of.out.data);
  tiles.statistics = reinterpret_cast<float*>(const_cast<Arithmetic<T>*>(of.statistics));
  tiles.dout = of.dout.data;
  tiles.dqkv = of.dqkv.data;
  tiles.deltas = reinterpret_cast<float*>(of.scratch);
  tiles.scratch = {of.scratch, cuda::attentions::backward_scratch_bytes(tiles)};
  return tiles;
}

}  // namespace tessera::nn
