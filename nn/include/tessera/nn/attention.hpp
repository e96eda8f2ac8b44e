// Multi-head self-attention (Vaswani et al. 2017): of each sequence and head, with q, k, v [sequence, head_dim],
//   out = drop(softmax(q kᵀ / sqrt(head_dim), each row over the keys up to its own, or over all)) v
//
// q, k and v are one matrix, as one linear layer makes it: each row holds q, then k, then v, and in each of them the
// heads one after the other. Probabilities are formed for 64 queries at a time and are never kept: backward forms them
// again from one number of each row, the logarithm of its sum of exponentials (Dao et al. 2022, FlashAttention).
//
// The functions enqueue on the stream, capture everything by value, do not synchronise and allocate nothing. Sums run
// in fp32 (fp64 for double), in an order that depends on the shape alone. 0 sequences are fine. They throw UsageError
// when shapes do not fit. On CUDA devices probabilities exist in tiles on the chip alone, and head_dim is 128 at most.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tessera/device/device.hpp"
#include "tessera/device/stream.hpp"
#include "tessera/nn/dropout.hpp"
#include "tessera/nn/element.hpp"
#include "tessera/nn/view.hpp"

#pragma GCC visibility push(default)

namespace tessera::nn {

struct AttentionShape {
  std::size_t sequences = 1;
  std::size_t sequence = 1;  // rows of each
  std::size_t heads = 1;
  std::size_t head_dim = 1;
  bool causal = true;  // over the keys up to a row's own; false: over all
  // These heads are some of so many, from this one on, for the mask's sake; 0: they are all.
  std::uint16_t heads_of_mask = 0;
  std::uint16_t first_head = 0;

  std::size_t rows() const { return sequences * sequence; }
  std::size_t dim() const { return heads * head_dim; }
  std::size_t statistics() const { return rows() * heads; }  // numbers that forward leaves for backward
  std::size_t mask_step() const { return heads_of_mask == 0 ? heads : heads_of_mask; }  // of rows, from row to row
};

// The dropout is of probabilities; the mask's row is global row · heads + head, its column the key's position in its
// sequence. `dropout.key.first_row` is the global row of the first row of qkv.
template <Element T>
struct AttentionForward {
  AttentionShape shape;
  MatrixView<const T> qkv;              // [rows, 3 · dim]
  MatrixView<T> out;                    // [rows, dim], or the last `queries` rows of each sequence
  std::size_t queries = 0;              // for generation: the last so many rows of each sequence are wanted; 0: all
  Arithmetic<T>* statistics = nullptr;  // [sequences, heads, sequence]; null: no backward pass follows
  Dropout dropout = {};
  Arithmetic<T>* scratch = nullptr;  // attention_forward_scratch<T>(shape, device) numbers
};
template <Element T>
void attention_forward(Stream& stream, const AttentionForward<T>& operation);

// Needs all rows of forward: `queries` was 0.
template <Element T>
struct AttentionBackward {
  AttentionShape shape;
  MatrixView<const T> qkv;                    // [rows, 3 · dim]
  const Arithmetic<T>* statistics = nullptr;  // [sequences, heads, sequence]
  MatrixView<const T> out = {};               // [rows, dim], as forward left it; read on CUDA devices alone
  MatrixView<const T> dout;                   // [rows, dim]
  MatrixView<T> dqkv;                         // [rows, 3 · dim]; overlaps nothing
  Dropout dropout = {};                       // as in forward
  Arithmetic<T>* scratch = nullptr;           // attention_backward_scratch<T>(shape, device) numbers
};
template <Element T>
void attention_backward(Stream& stream, const AttentionBackward<T>& operation);

// How many numbers of Arithmetic<T> a pass needs: 64 rows as long as a sequence in forward, 128 in backward; for bf16
// and fp16 the operands of one head besides. Does not grow with sequences and heads. On CUDA devices none in forward,
// and a number for each row and head in backward.
template <Element T>
std::size_t attention_forward_scratch(const AttentionShape& shape, DeviceKind device = DeviceKind::cpu);
template <Element T>
std::size_t attention_backward_scratch(const AttentionShape& shape, DeviceKind device = DeviceKind::cpu);

}  // namespace tessera::nn

#pragma GCC visibility pop
