// Dropout, and the masks' keys: words and loops are in rows/dropout_lanes.hpp.
#include "tessera/nn/dropout.hpp"

#include <fmt/format.h>

#include <cmath>

#include "src/cuda/cuda_layers.hpp"
#include "src/exported.hpp"
#include "src/operation.hpp"
#include "src/rows/active_rows.hpp"
#include "src/shared_rows.hpp"
#include "tessera/base/error.hpp"
#include "tessera/kernels/elementwise.hpp"

namespace tessera::nn {

namespace {

constexpr std::uint64_t largest_row = std::uint64_t{1} << 48;
constexpr std::uint64_t domain = 0x64726f706f757421;  // keeps these words apart from those of initial values

}  // namespace

DropoutMask mask_of(const Dropout& of, std::size_t rows) {
  if (!(of.probability >= 0.0f && of.probability < 1.0f)) {
    throw UsageError(fmt::format("dropout: probability must be in [0, 1), but is {}", of.probability));
  }
  if (of.key.first_row > largest_row || rows > largest_row - of.key.first_row) {
    throw UsageError(fmt::format("dropout: rows {} to {} of a step are wanted, but the mask has 2^48", of.key.first_row,
                                 of.key.first_row + rows));
  }
  const std::uint64_t seed = of.key.seed ^ domain;
  return {.key = {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)},
          .step = of.key.step,
          .layer = of.key.layer,
          .first_row = of.key.first_row,
          .drop_below = static_cast<std::uint32_t>(std::lround(static_cast<double>(of.probability) * 0x1p32)),
          .scale = 1.0f / (1.0f - of.probability)};
}

template <Element T>
void dropout(Stream& stream, const Dropout& of, ConstMatrixView<T> x, MatrixView<T> y) {
  require_shape("dropout: y", y, x.rows, x.columns);
  const DropoutMask mask = mask_of(of, x.rows);
  if (of.probability == 0.0f) return kernels::copy(stream, y.data, x.data, Bytes(x.elements() * sizeof(T)));
  const DropoutRows rows{
      .format = format_of<T>, .mask = mask, .x = x.data, .y = y.data, .rows = x.rows, .columns = x.columns};
  enqueue_rows<T, cuda::dropout>(stream, "dropout", rows);
}

template <Element T>
void add_dropped(Stream& stream, const ResidualDropout<T>& of) {
  require_shape("dropout: residual", of.residual, of.x.rows, of.x.columns);
  require_shape("dropout: y", of.y, of.x.rows, of.x.columns);
  const DropoutMask mask = mask_of(of.dropout, of.x.rows);
  if (of.dropout.probability == 0.0f) {
    const AddRow row{format_of<T>, of.residual.data, of.x.data, of.y.data, of.x.elements()};
    return enqueue_rows<T, cuda::add>(stream, "dropout", row);
  }
  const DropoutRows rows{.format = format_of<T>,
                         .mask = mask,
                         .residual = of.residual.data,
                         .x = of.x.data,
                         .y = of.y.data,
                         .rows = of.x.rows,
                         .columns = of.x.columns};
  enqueue_rows<T, cuda::dropout>(stream, "dropout", rows);
}

#define TESSERA_DROPOUT(T)                                                                            \
  template TESSERA_EXPORTED void dropout(Stream&, const Dropout&, ConstMatrixView<T>, MatrixView<T>); \
  template TESSERA_EXPORTED void add_dropped(Stream&, const ResidualDropout<T>&);
TESSERA_FOR_EACH_ELEMENT(TESSERA_DROPOUT)

}  // namespace tessera::nn
