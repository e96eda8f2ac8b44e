// Causal attention by a library's fused kernel, in plain terms, and the one door to it. So what is asked for can be
// checked where there is no GPU; the tests put another library behind it.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "src/cuda/product.hpp"
#include "src/rows/row_table.hpp"

namespace tessera::nn::cuda {

// Vectors of heads, without gaps: that of (sequence, head, row) begins sequence · sequence_stride + head · head_stride
// + row · row_stride elements after the first.
struct Heads {
  const void* data = nullptr;
  std::size_t sequence_stride = 0;
  std::size_t head_stride = 0;
  std::size_t row_stride = 0;
};

// The shapes are those of attention.hpp, without dropout. No extent is 0.
struct FusedAttention {
  Format format;  // bf16 or fp16
  bool backward;
  std::size_t sequences;
  std::size_t heads;
  std::size_t rows;  // of each sequence
  std::size_t head_dim;
  float scale;
  Heads q;
  Heads k;
  Heads v;
  Heads out;  // forward writes it, backward reads it
  float*
      statistics;  // [sequences, heads, rows] without gaps: logarithms of sums of exponentials; forward: null, unwanted
  Heads dout = {};  // from here on backward's
  Heads dq = {};
  Heads dk = {};
  Heads dv = {};
  Workspace workspace = {};
};

struct FusedAttentionLibrary {
  std::string missing;   // why it cannot be used; empty when it can
  std::string in_words;  // such as "cuDNN 9.19.0"

  // Bytes of workspace that an operation takes; none when the library has no kernel for it, which it says on stderr.
  // The first time it prepares one, which takes long and allocates on the host; later it looks it up by everything but
  // addresses. Both are called on the thread that issues, with the stream's device current.
  std::optional<std::size_t> (*workspace_bytes)(const FusedAttention& operation) = nullptr;
  // Enqueues what workspace_bytes() has found, on `native`, a cudaStream_t. The same bits each time.
  void (*run)(void* native, const FusedAttention& operation) = nullptr;
};
const FusedAttentionLibrary& fused_attention_library();

}  // namespace tessera::nn::cuda
