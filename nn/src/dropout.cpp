// Dropout: the mask and the loops are in rows/dropout_lanes.hpp.
#include "tessera/nn/dropout.hpp"

#include "src/cuda/cuda_layers.hpp"
#include "src/dropout_mask.hpp"
#include "src/instantiate.hpp"
#include "src/issue.hpp"
#include "src/rows/active_rows.hpp"
#include "src/shapes.hpp"
#include "tessera/kernels/elementwise.hpp"

namespace tessera::nn {

namespace {

template <typename T>
void run(Stream& stream, const DropoutRows& rows) {
  if (on_cuda(stream)) return issue<T>(stream, "dropout", [rows](void* native) { cuda::dropout(native, rows); });
  stream.submit([rows, run = active_rows().dropout] { run(rows); });
}

}  // namespace

template <Element T>
void dropout(Stream& stream, const Dropout& of, ConstMatrixView<T> x, MatrixView<T> y) {
  require_shape("dropout: y", y, x.rows, x.columns);
  const DropoutMask mask = mask_of(of, x.rows);
  if (of.probability == 0.0f) return kernels::copy(stream, y.data, x.data, Bytes(x.elements() * sizeof(T)));
  const DropoutRows rows{.format = format_of<T>,
                         .mask = mask,
                         .residual = nullptr,
                         .x = x.data,
                         .y = y.data,
                         .rows = x.rows,
                         .columns = x.columns};
  run<T>(stream, rows);
}

template <Element T>
void add_dropped(Stream& stream, const ResidualDropout<T>& of) {
  require_shape("dropout: residual", of.residual, of.x.rows, of.x.columns);
  require_shape("dropout: y", of.y, of.x.rows, of.x.columns);
  const DropoutMask mask = mask_of(of.dropout, of.x.rows);
  if (of.dropout.probability == 0.0f) {
    const AddRow row{format_of<T>, of.residual.data, of.x.data, of.y.data, of.x.elements()};
    if (on_cuda(stream)) return issue<T>(stream, "dropout", [row](void* native) { cuda::add(native, row); });
    stream.submit([row, run = active_rows().add] { run(row); });
    return;
  }
  const DropoutRows rows{.format = format_of<T>,
                         .mask = mask,
                         .residual = of.residual.data,
                         .x = of.x.data,
                         .y = of.y.data,
                         .rows = of.x.rows,
                         .columns = of.x.columns};
  run<T>(stream, rows);
}

#define TESSERA_DROPOUT(T)                                                           \
  template void dropout(Stream&, const Dropout&, ConstMatrixView<T>, MatrixView<T>); \
  template void add_dropped(Stream&, const ResidualDropout<T>&);
TESSERA_FOR_EACH_ELEMENT(TESSERA_DROPOUT)

}  // namespace tessera::nn
