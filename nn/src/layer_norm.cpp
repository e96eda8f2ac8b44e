// Layer normalisation: the rows' loops are in rows/layer_norm_lanes.hpp.
#include "tessera/nn/layer_norm.hpp"

#include "src/cuda/cuda_layers.hpp"
#include "src/exported.hpp"
#include "src/operation.hpp"
#include "src/rows/active_rows.hpp"
#include "src/shared_rows.hpp"
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
  enqueue_rows<T, cuda::layer_norm_forward>(stream, "layer norm", rows);
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
  if (on_cuda(stream)) {
    return issue<T>(stream, "layer norm",
                    [rows, scratch = of.scratch](void* native) { cuda::layer_norm_backward(native, rows, scratch); });
  }
  stream.submit([rows, &run = active_rows()] { run_shared(run, rows); });
}

std::size_t layer_norm_scratch(std::size_t rows, std::size_t dim, DeviceKind device) {
  return device == DeviceKind::cuda ? cuda::layer_norm_scratch(rows, dim) : 0;
}

template <Element T>
LayerNorm<T>::LayerNorm(std::size_t dim, const Slices& slices)
    : weight_({dim}, Initial::ones(), alike_on(slices)), bias_({dim}, Initial::zeros(), alike_on(slices)) {
  if (slices.any()) {
    sums_.emplace(2 * dim,
                  sliced_collective<T>(CollectiveKind::all_reduce, CollectiveWindows::of_weights, slices.in_two));
  }
}

template <Element T>
void LayerNorm<T>::visit(ModuleVisitor& visitor) {
  visitor("weight", weight_);
  visitor("bias", bias_);
  if (sums_) visitor("gradients", *sums_);
}

template <Element T>
typename LayerNorm<T>::Saved LayerNorm<T>::forward(Window& window, ActivationStack& stack, MatrixView<const T> x,
                                                   MatrixView<T> y) {
  const Saved saved{.x = x, .mean = stack.push<Arithmetic<T>>(x.rows), .inverse = stack.push<Arithmetic<T>>(x.rows)};
  enqueue(window, layer_norm_forward<T>,
          {.x = x,
           .weight = parameter_of<T>(window, weight_),
           .bias = parameter_of<T>(window, bias_),
           .y = y,
           .mean = saved.mean.data(),
           .inverse = saved.inverse.data()});
  return saved;
}

template <Element T>
void LayerNorm<T>::backward(Window& window, ActivationStack& stack, const Saved& saved, MatrixView<const T> dy,
                            MatrixView<T> dx) {
  backward_with(window, stack, saved, {.dy = dy, .residual = nullptr, .dx = dx});
}

template <Element T>
void LayerNorm<T>::add_backward(Window& window, ActivationStack& stack, const Saved& saved, MatrixView<const T> dy,
                                MatrixView<T> dx) {
  backward_with(window, stack, saved, {.dy = dy, .residual = dx.data, .dx = dx});
}

template <Element T>
typename LayerNorm<T>::Between LayerNorm<T>::backward_input(Window& window, ActivationStack& stack, const Saved& saved,
                                                            MatrixView<const T> dy, MatrixView<T> dx) {
  backward_with(window, stack, saved, {.dy = dy, .residual = nullptr, .dx = dx, .of_parameters = false});
  return dy;
}

template <Element T>
typename LayerNorm<T>::Between LayerNorm<T>::add_backward_input(Window& window, ActivationStack& stack,
                                                                const Saved& saved, MatrixView<const T> dy,
                                                                MatrixView<T> dx) {
  backward_with(window, stack, saved, {.dy = dy, .residual = dx.data, .dx = dx, .of_parameters = false});
  return dy;
}

// Forms the gradient of x once more, which costs little beside its own sums.
template <Element T>
void LayerNorm<T>::backward_parameters(Window& window, ActivationStack& stack, const Saved& saved, const Between& dy) {
  const ScratchScope scope(stack);
  const auto unused = stack.push<T>(dy.rows, dy.columns);
  backward_with(window, stack, saved, {.dy = dy, .residual = nullptr, .dx = unused});
}

template <Element T>
void LayerNorm<T>::backward_with(Window& window, ActivationStack& stack, const Saved& saved,
                                 const Gradients& gradients) {
  const ScratchScope scope(stack);
  const auto scratch = stack.push<float>(layer_norm_scratch(saved.x.rows, saved.x.columns, device_of(window, stack)));
  const std::size_t dim = saved.x.columns;
  T* const dweight = gradients.of_parameters ? gradient_of<T>(window, weight_) : nullptr;
  T* const dbias = gradients.of_parameters ? gradient_of<T>(window, bias_) : nullptr;
  const bool sums_up = sums_ && gradients.of_parameters;
  T* const parts = sums_up ? window.contribution<T>(*sums_).data() : nullptr;
  enqueue(window, layer_norm_backward<T>,
          {.x = saved.x,
           .weight = parameter_of<T>(window, weight_),
           .mean = saved.mean.data(),
           .inverse = saved.inverse.data(),
           .dy = gradients.dy,
           .residual = gradients.residual,
           .dx = gradients.dx,
           .dweight = sums_up ? parts : dweight,
           .dbias = sums_up && parts != nullptr ? parts + dim : dbias,
           .scratch = scratch.data()});
  if (!sums_up) return;
  const T* const sums = window.collect<T>(*sums_).first;
  if (!window.computes()) return;
  for (const auto& [to, from] : {std::pair(dweight, sums), std::pair(dbias, sums + dim)}) {
    if (to != nullptr) kernels::copy(window.stream(), to, from, Bytes(dim * sizeof(T)));
  }
}

#define TESSERA_LAYER_NORM(T)                                                               \
  template TESSERA_EXPORTED void layer_norm_forward(Stream&, const LayerNormForward<T>&);   \
  template TESSERA_EXPORTED void layer_norm_backward(Stream&, const LayerNormBackward<T>&); \
  template class LayerNorm<T>;
TESSERA_FOR_EACH_ELEMENT(TESSERA_LAYER_NORM)

}  // namespace tessera::nn
