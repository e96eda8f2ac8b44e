// Dropout (Srivastava et al. 2014), inverted: y = x / (1 - probability) where the mask keeps x, 0 elsewhere.
//
// The mask is a function of (seed, step, layer, global row, column) and of nothing else: one 32-bit word of Philox for
// each element (base/philox.hpp). So the backward pass and a recomputed forward pass replay it from the same key, and
// it is the same however the rows of a step are divided among ranks and micro-batches.
//
// The functions enqueue on the stream, capture everything by value, do not synchronise and allocate nothing. They throw
// UsageError for a probability outside [0, 1) and for shapes that do not fit. With a probability of 0 no word is drawn.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tessera/device/stream.hpp"
#include "tessera/nn/element.hpp"
#include "tessera/nn/view.hpp"

#pragma GCC visibility push(default)

namespace tessera::nn {

struct DropoutKey {
  std::uint64_t seed = 0;
  std::uint32_t step = 0;
  std::uint16_t layer = 0;      // of every place that drops, another one
  std::uint64_t first_row = 0;  // of the view, within the step's global batch; below 2^48 with the view's rows
};

struct Dropout {
  float probability = 0.0f;  // of an element to be dropped, exact to 2^-32
  DropoutKey key = {};
};

// y = drop(x); y may be x, for which a probability of 0 enqueues nothing at all. Forward; and backward, with dy as x.
template <Element T>
void dropout(Stream& stream, const Dropout& dropout, ConstMatrixView<T> x, MatrixView<T> y);

// y = residual + drop(x), rounded once. y may be residual or x. Its gradients: that of residual is dy, that of x is
// dropout() of dy.
template <Element T>
struct ResidualDropout {
  MatrixView<const T> residual;
  MatrixView<const T> x;
  MatrixView<T> y;
  Dropout dropout = {};
};
template <Element T>
void add_dropped(Stream& stream, const ResidualDropout<T>& operation);

}  // namespace tessera::nn

#pragma GCC visibility pop
