// The inner loops of the layers over rows of elements, as plain functions on plain arguments, once per instruction set.
// The files compiled with a set's flags include this and nothing of the standard library that has code, because the
// linker may keep any copy of a shared inline function for everybody. All sets give the same bits: sixteen lanes in a
// fixed order, and no operation is contracted into another.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tessera::nn {

enum class Format { fp32, fp64, bf16, fp16 };  // of elements in memory

struct LayerNormForwardRows {
  Format format;
  const void* x;  // [rows, dim]
  const void* weight;
  const void* bias;
  void* y;        // [rows, dim]; may be x
  void* mean;     // [rows], in the type of arithmetic: float, or double for fp64
  void* inverse;  // [rows]: 1 / sqrt(variance + epsilon)
  std::size_t rows;
  std::size_t dim;
  double epsilon;
};

struct LayerNormBackwardRows {
  Format format;
  const void* x;
  const void* weight;
  const void* mean;
  const void* inverse;
  const void* dy;
  const void* residual;  // null: none
  void* dx;              // may be dy, residual or both
  void* dweight;         // null: not wanted
  void* dbias;           // null: not wanted
  std::size_t rows;
  std::size_t dim;
  bool accumulate;
};

// y = a + b; y may be either.
struct AddRow {
  Format format;
  const void* a;
  const void* b;
  void* y;
  std::size_t count;
};

// to[dim] = the sum of rows of a matrix, in their order: those of `index`, or without it each step-th from the first.
struct SumRows {
  Format format;
  const void* from;  // [.., dim], rows `stride` elements after each other
  std::size_t stride;
  const std::int32_t* index = nullptr;  // [count]; null: use step
  std::size_t step;
  std::size_t count;
  std::size_t dim;
  void* to;
  bool accumulate;  // starts from what is there
};

// Where a mask is drawn from. An element is dropped when its word is below `drop_below`.
struct DropoutMask {
  std::uint32_t key[2];
  std::uint32_t step;
  std::uint32_t layer;      // below 2^16
  std::uint64_t first_row;  // below 2^48
  std::uint32_t drop_below;
  float scale;  // of what is kept
};

struct DropoutRows {
  Format format;
  DropoutMask mask;
  const void* residual = nullptr;  // [rows, columns], added; null: none
  const void* x;
  void* y;  // may be x or residual
  std::size_t rows;
  std::size_t columns;
};

// Rows of scores q kᵀ, one for each query; row r may look at the first first_keys + r · key_step keys. Without
// `gradients` (forward) they become e^(scale · (score - largest)), times the mask's factors; with them (backward) see
// attention_lanes.hpp. Between the keys that a row may look at and `keys`, zeros are written. Memory of a row goes on
// to a multiple of 16.
struct AttentionRows {
  Format format;              // fp32 or fp64
  void* scores;               // [rows, stride]
  void* gradients = nullptr;  // [rows, stride]
  std::size_t stride;
  std::size_t rows;
  std::size_t first_keys;
  std::size_t key_step;  // 1: causal, 0: all rows look at the same keys
  std::size_t keys;
  double scale;                      // above 0
  void* new_statistics = nullptr;    // [rows]: forward writes log Σ e^(scale · score) there
  const void* statistics = nullptr;  // [rows]: backward reads it there
  void* inverse_sums = nullptr;      // [rows]: forward writes what makes probabilities of the exponentials
  const DropoutMask* mask;           // null: nothing is dropped
  std::size_t mask_row_step;         // from one query to the next
  float* factors;                    // [keys, up to a multiple of 64]: scratch memory, when there is a mask
};

// Between `format` and the type of arithmetic: loaded into it, or stored from it.
struct PanelRows {
  Format format;
  const void* from;
  std::size_t from_stride;
  void* to;  // may be `from` when the types are the same
  std::size_t to_stride;
  std::size_t rows;
  std::size_t columns;
  const void* factors =
      nullptr;  // [rows], in the type that is read (of store: of arithmetic), multiply each row; null: 1
};

// to = max(y, 0), or with dy, y being what the rectifier gave: dy where y is above 0, else 0. A NaN of y stays one, and
// lets dy pass.
struct ReluRow {
  Format format;
  const void* y;
  const void* dy;  // null: forward
  void* to;        // may be either
  std::size_t count;
};

// to = gelu(x), or with dy: dy · gelu'(x).
struct GeluRow {
  Format format;
  const void* x;
  const void* dy;  // null: forward
  void* to;        // may be either
  std::size_t count;
};

// The largest logit, and the sum of e^(logit - largest).
struct SoftmaxSum {
  Format format;
  const void* logits;  // [count]
  std::size_t count;   // at least 1
  double* largest;
  double* sum;
};

// to = e^(logit - largest) · factor - less
struct SoftmaxScaled {
  Format format;
  const void* logits;  // [count]
  void* to;            // may be logits
  std::size_t count;
  double largest;
  double factor;
  double less = 0.0;
};

struct RowTable {
  void (*relu)(const ReluRow&);
  void (*gelu)(const GeluRow&);
  void (*softmax_sum)(const SoftmaxSum&);
  void (*softmax_scaled)(const SoftmaxScaled&);
  void (*attention_rows)(const AttentionRows&);
  void (*load_panel)(const PanelRows&);
  void (*store_panel)(const PanelRows&);
  void (*add)(const AddRow&);
  void (*sum_rows)(const SumRows&);
  void (*dropout)(const DropoutRows&);
  void (*layer_norm_forward)(const LayerNormForwardRows&);
  void (*layer_norm_parameters)(const LayerNormBackwardRows&, std::size_t first_column, std::size_t last_column);
  void (*layer_norm_input)(const LayerNormBackwardRows&, std::size_t first_row, std::size_t last_row);  // dx alone
};

const RowTable& portable_rows();
const RowTable& avx2_rows();
const RowTable& avx512_rows();

}  // namespace tessera::nn
