// The layers of CUDA devices, between the functions that dispatch on a stream's device and the kernels. Each enqueues
// on `native`, a cudaStream_t, from a task of its stream; pointers are the device's. Arguments of row loops are the
// CPU's.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "src/cuda/product.hpp"
#include "src/cuda/row_parts.hpp"
#include "src/rows/row_table.hpp"

#pragma GCC visibility push(default)

namespace tessera::nn {

// Chunks of bytes from places that stand so far apart, along three dimensions, to others. No two overlap.
struct ChunkCopy {
  const std::byte* from;
  std::byte* to;
  std::size_t chunk;
  std::size_t extents[3];
  std::size_t from_strides[3] = {};
  std::size_t to_strides[3] = {};

  std::size_t count() const { return extents[0] * extents[1] * extents[2] * chunk; }  // of bytes
};

}  // namespace tessera::nn

namespace tessera::nn::cuda {

void copy_chunks(void* native, const ChunkCopy& a);
void gelu(void* native, const GeluRow& a);
void add(void* native, const AddRow& a);
void dropout(void* native, const DropoutRows& a);
void relu(void* native, const ReluRow& a);

// Each row of y becomes `row`, or zeros without one.
struct SpreadRow {
  Format format;
  const void* row;  // [columns]; null: zeros
  void* y;          // [rows, columns]
  std::size_t rows;
  std::size_t columns;
};
void spread_row(void* native, const SpreadRow& a);

// to[columns] = the sum of all rows: in parts of rows first, then over the parts in their order.
struct ColumnSums {
  Format format;
  const void* from;  // [rows, columns]
  void* to;
  std::size_t rows;
  std::size_t columns;
  bool accumulate;
  float* scratch;  // column_sums_scratch(rows, columns) floats
};
void column_sums(void* native, const ColumnSums& a);
constexpr std::size_t column_sums_scratch(std::size_t rows, std::size_t columns) {
  return parts_of(rows).count * columns;
}

// y = x weightᵀ + bias + residual, and gelu = gelu(y) when wanted, not with a residual.
struct LinearForwardRows {
  Format format;
  const void* x;         // [batch, in]
  const void* weight;    // [out, in]
  const void* bias;      // null: none
  void* y;               // [batch, out]
  void* gelu;            // [batch, out]; null: not wanted
  const void* residual;  // [batch, out]; null: none
  std::size_t y_stride;  // 0: out; others without bias, gelu and residual
  std::size_t batch;
  std::size_t in;
  std::size_t out;
  bool tf32;
  Workspace scratch;
};
void linear_forward(void* native, const LinearForwardRows& a);

struct LinearBackwardRows {
  Format format;
  const void* x;
  const void* weight;
  const void* dy;         // [batch, out]
  std::size_t dy_stride;  // 0: out; others without dbias
  void* dx;               // [batch, in]; null: not wanted
  const void* gelu_x;     // [batch, in]: x is its gelu, and dx its gradient; null: neither
  void* dweight;          // null: not wanted
  void* dbias;            // null: not wanted
  bool accumulate;
  std::size_t batch;
  std::size_t in;
  std::size_t out;
  bool tf32;
  Workspace scratch;
};
void linear_backward(void* native, const LinearBackwardRows& a);

// Bytes that a product uses best of which an operand or the result has so many elements: room for eight parts, where it
// is cut along its depth.
constexpr std::size_t product_workspace_bytes(std::size_t largest) {
  constexpr std::size_t least = std::size_t{64} << 10, most = std::size_t{32} << 20;  // cuBLASLt asks for it on Hopper
  return std::clamp(largest * 8 * sizeof(float), least, most);
}

// Both directions of a linear layer use so many, which the bias gradient's sums take, too.
constexpr std::size_t linear_scratch_bytes(std::size_t batch, std::size_t in, std::size_t out) {
  const std::size_t products = product_workspace_bytes(std::max({batch * out, batch * in, in * out}));
  return std::max(products, column_sums_scratch(batch, out) * sizeof(float));
}

void layer_norm_forward(void* native, const LayerNormForwardRows& a);
// `scratch`: layer_norm_scratch(rows, dim) floats.
void layer_norm_backward(void* native, const LayerNormBackwardRows& a, float* scratch);
std::size_t layer_norm_scratch(std::size_t rows, std::size_t dim);

// This is EmbeddingForward<T> without its type. Rows of ids that are none of the table's become NaN.
struct EmbeddingForwardRows {
  Format format;
  const void* table;
  const void* positions;  // null: none
  const std::int32_t* ids;
  void* y;
  std::size_t sequence;
  std::size_t first_position;
  std::size_t rows;
  std::size_t vocabulary;
  std::size_t dim;
  std::size_t first_id;
  std::size_t all_ids;  // of the larger table that this is a slice of, or 0: rows of its other ids have nothing of this
};
void embedding_forward(void* native, const EmbeddingForwardRows& a);

// This is EmbeddingBackward<T> without its type. Rows of ids that are none of the table's are left out of dtable.
struct EmbeddingBackwardRows {
  Format format;
  const std::int32_t* ids;
  const void* dy;
  void* dtable;      // null: not wanted
  void* dpositions;  // null: not wanted
  std::size_t sequence;
  std::size_t first_position;
  std::size_t rows;
  std::size_t vocabulary;
  std::size_t context;
  std::size_t dim;
  bool accumulate;
  std::int32_t* scratch;  // embedding_backward_scratch(rows, vocabulary) numbers
  std::size_t first_id;
};
// Rows are sorted by id, so many bits at a time and in tiles of so many rows.
inline constexpr unsigned embedding_digit_bits = 8;
inline constexpr unsigned embedding_digits = 1u << embedding_digit_bits;
inline constexpr unsigned embedding_tile = 1024;
// Where the rows of each id begin; the rows' order, twice; and a digit's places.
constexpr std::size_t embedding_backward_scratch(std::size_t rows, std::size_t vocabulary) {
  return vocabulary + 1 + 2 * rows + (rows + embedding_tile - 1) / embedding_tile * embedding_digits + 1;
}
void embedding_backward(void* native, const EmbeddingBackwardRows& a);

// These are AttentionForward<T> and AttentionBackward<T> without their types.
struct AttentionTiles {
  Format format;
  std::size_t sequences;
  std::size_t sequence;
  std::size_t heads;
  std::size_t head_dim;
  std::size_t queries;  // of each sequence, its last ones; backward: all
  float scale;
  bool causal;            // keys up to a query's own, or all
  DropoutMask mask;       // drop_below 0: nothing is dropped
  std::size_t mask_step;  // its rows from row to row of qkv: heads, or more
  const void* qkv;
  void* out = nullptr;          // forward writes it, backward reads it
  float* statistics = nullptr;  // forward: null when not wanted
  const void* dout = nullptr;
  void* dqkv = nullptr;
  float* deltas = nullptr;  // [sequences, heads, sequence], backward's scratch memory
  Workspace scratch = {};   // the same memory and what a library may use besides; forward's may be none
};
// Own kernels compute these; attention_choice.hpp may choose others.
void attention_forward(void* native, const AttentionTiles& a);
void attention_backward(void* native, const AttentionTiles& a);
inline constexpr std::size_t largest_head = 128;  // head_dim at most: so much of a tile fits a block's shared memory

// This is CrossEntropyRows<T> without its type.
struct CrossEntropyArguments {
  Format format;
  const void* logits;  // [batch, classes]
  const std::int32_t* labels;
  const float* weights;  // null: 1 for all
  float denominator;
  // [batch, 2] largest logits and sums, behind them with smoothing [batch] means of logits
  float* statistics;
  float* label_logits = nullptr;  // [batch], of cross_entropy_at_once; else null
  float* marks;                   // [batch], of count_correct
  float smoothing;
  std::size_t batch;
  std::size_t classes;
  std::size_t stride;       // from row to row of logits and their gradients
  std::size_t all_classes;  // of which these are some, from one on
  std::size_t first_class;
};
void cross_entropy_forward(void* native, const CrossEntropyArguments& a, float* loss);
struct CrossEntropyGradient {
  const float* loss_scale;
  void* dlogits;  // may be the logits
};
void cross_entropy_backward(void* native, const CrossEntropyArguments& a, const CrossEntropyGradient& to);
void cross_entropy_at_once(void* native, const CrossEntropyArguments& a, float* loss, const CrossEntropyGradient& to);
// Those of each slice, `stride` numbers from the ones before.
struct BroughtClasses {
  const float* first;
  std::size_t stride;
  std::size_t count;
};
void cross_entropy_of_slice(void* native, const CrossEntropyArguments& a, float* brought);
void cross_entropy_of_slices(void* native, const CrossEntropyArguments& a, const BroughtClasses& brought, float* loss);
void count_correct(void* native, const CrossEntropyArguments& a, double* correct, std::size_t among);

}  // namespace tessera::nn::cuda

#pragma GCC visibility pop
