// Layer normalisation: the rows' loops are in rows/layer_norm_lanes.hpp.
#include "tessera/nn/layer_norm.hpp"

#include "src/instantiate.hpp"
#include "src/rows/active_rows.hpp"
#include "src/shapes.hpp"
#include "tessera/base/error.hpp"

namespace tessera::nn {

namespace {

template <Element T>
void require_columns(MatrixView<const T> x) {
  if (x.columns == 0) throw UsageError("layer norm: a row must have at least one element");
}

}  // namespace

template <Element T>
void layer_norm_forward(Stream& stream, const LayerNormForward<T>& of) {
  require_columns(of.x);
  require_shape("layer norm: y", of.y, of.x.rows, of.x.columns);
  const LayerNormForwardRows rows{.format = format_of<T>,
                                  .x = of.x.data,
                                  .weight = of.weight,
                                  .bias = of.bias,
                                  .y = of.y.data,
                                  .mean = of.mean,
                                  .inverse = of.inverse,
                                  .rows = of.x.rows,
                                  .dim = of.x.columns,
                                  .epsilon = layer_norm_epsilon};
  stream.submit([rows, run = active_rows().layer_norm_forward] { run(rows); });
}

template <Element T>
void layer_norm_backward(Stream& stream, const LayerNormBackward<T>& of) {
  require_columns(of.x);
  require_shape("layer norm: dy", of.dy, of.x.rows, of.x.columns);
  require_shape("layer norm: dx", of.dx, of.x.rows, of.x.columns);
  const LayerNormBackwardRows rows{.format = format_of<T>,
                                   .x = of.x.data,
                                   .weight = of.weight,
                                   .mean = of.mean,
                                   .inverse = of.inverse,
                                   .dy = of.dy.data,
                                   .residual = of.residual,
                                   .dx = of.dx.data,
                                   .dweight = of.dweight,
                                   .dbias = of.dbias,
                                   .rows = of.x.rows,
                                   .dim = of.x.columns,
                                   .accumulate = of.accumulate};
  stream.submit([rows, run = active_rows().layer_norm_backward] { run(rows); });
}

#define TESSERA_LAYER_NORM(T)                                            \
  template void layer_norm_forward(Stream&, const LayerNormForward<T>&); \
  template void layer_norm_backward(Stream&, const LayerNormBackward<T>&);
TESSERA_FOR_EACH_ELEMENT(TESSERA_LAYER_NORM)

}  // namespace tessera::nn
