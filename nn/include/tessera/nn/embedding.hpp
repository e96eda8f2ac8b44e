// Token and position embeddings: y[row] = table[ids[row]] + positions[first_position + row mod sequence].
//
// The functions enqueue on the stream, capture everything by value, do not synchronise and allocate nothing. Gradients
// are sums over rows in the order of the rows, in fp32 (fp64 for double), each element stored once. 0 rows are fine.
// They throw UsageError when shapes do not fit. An id that is no row of the table is a UsageError in the stream that
// names the row and the id; nothing is written then.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tessera/device/stream.hpp"
#include "tessera/nn/element.hpp"
#include "tessera/nn/view.hpp"

namespace tessera::nn {

template <Element T>
struct EmbeddingForward {
  MatrixView<const T> table;          // [vocabulary, dim]
  MatrixView<const T> positions;      // [context, dim]; without data: none are added
  const std::int32_t* ids = nullptr;  // [rows], 0 … vocabulary - 1
  std::size_t sequence = 1;           // rows of each sequence; divides rows
  std::size_t first_position = 0;     // of every sequence; first_position + sequence <= context
  MatrixView<T> y;                    // [rows, dim]
};
template <Element T>
void embedding_forward(Stream& stream, const EmbeddingForward<T>& operation);

template <Element T>
struct EmbeddingBackward {
  const std::int32_t* ids = nullptr;  // [rows]
  std::size_t sequence = 1;           // rows of each sequence; divides rows
  std::size_t first_position = 0;
  MatrixView<const T> dy;           // [rows, dim]
  MatrixView<T> dtable;             // [vocabulary, dim]; rows of ids that do not occur become 0
  MatrixView<T> dpositions;         // [context, dim]; without data: not wanted. Other rows become 0
  bool accumulate = false;          // adds to dtable and dpositions instead of replacing them
  std::int32_t* scratch = nullptr;  // embedding_scratch(rows, vocabulary) numbers
};
template <Element T>
void embedding_backward(Stream& stream, const EmbeddingBackward<T>& operation);

std::size_t embedding_scratch(std::size_t rows, std::size_t vocabulary);

}  // namespace tessera::nn
