// The linear layer.
#include "tessera/nn/linear.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>

#include "src/cuda/cuda_layers.hpp"
#include "src/exported.hpp"
#include "src/gemm.hpp"
#include "src/operation.hpp"
#include "src/rows/active_rows.hpp"
#include "src/shared_rows.hpp"
#include "tessera/base/error.hpp"
#include "tessera/nn/dropout.hpp"
#include "tessera/nn/tf32.hpp"

namespace tessera::nn {

namespace {

std::atomic<bool>& tf32_permission() {
  static std::atomic<bool> allowed = false;
  return allowed;
}

template <typename T>
void forward_now(const LinearForward<T>& of) {
  const std::size_t out = of.weight.rows;
  if (of.bias != nullptr) {
    parallel::in_shares(shares_of_rows(of.y.rows, out), [&](std::size_t begin, std::size_t end, std::size_t) {
      for (std::size_t row = begin; row < end; ++row) std::copy_n(of.bias, out, of.y.data + row * out);
    });
  }
  gemm<T>({.a = {of.x.data},
           .b = {of.weight.data, true},
           .c = of.y.data,
           .m = of.x.rows,
           .n = out,
           .k = of.x.columns,
           .add = of.bias != nullptr,
           .scratch = of.scratch});
  if (of.residual.columns != 0) {
    run_shared(active_rows(), AddRow{format_of<T>, of.residual.data, of.y.data, of.y.data, of.y.elements()});
  }
  if (of.gelu.columns == 0) return;
  run_shared(active_rows(), GeluRow{format_of<T>, of.y.data, nullptr, of.gelu.data, of.y.elements()});
}

template <typename T>
void bias_gradient_now(const LinearBackward<T>& of) {
  run_shared(active_rows(), SumRows{.format = format_of<T>,
                                    .from = of.dy.data,
                                    .stride = of.dy.columns,
                                    .step = 1,
                                    .count = of.dy.rows,
                                    .dim = of.dy.columns,
                                    .to = of.dbias,
                                    .accumulate = of.accumulate});
}

template <typename T>
void backward_now(const LinearBackward<T>& of) {
  const std::size_t batch = of.x.rows;
  const std::size_t in = of.weight.columns;
  const std::size_t out = of.weight.rows;
  if (of.dweight != nullptr) {
    gemm<T>({.a = {of.dy.data, true},
             .b = {of.x.data},
             .c = of.dweight,
             .m = out,
             .n = in,
             .k = batch,
             .add = of.accumulate,
             .scratch = of.scratch});
  }
  if (of.dbias != nullptr) bias_gradient_now(of);
  if (of.dx.columns == 0) return;
  gemm<T>({.a = {of.dy.data},
           .b = {of.weight.data},
           .c = of.dx.data,
           .m = batch,
           .n = in,
           .k = out,
           .scratch = of.scratch});
  if (of.gelu_x.columns == 0) return;
  run_shared(active_rows(), GeluRow{format_of<T>, of.gelu_x.data, of.dx.data, of.dx.data, of.dx.elements()});
}

template <typename T>
cuda::LinearForwardRows cuda_rows(const LinearForward<T>& of) {
  return {.format = format_of<T>,
          .x = of.x.data,
          .weight = of.weight.data,
          .bias = of.bias,
          .y = of.y.data,
          .gelu = of.gelu.columns == 0 ? nullptr : of.gelu.data,
          .residual = of.residual.columns == 0 ? nullptr : of.residual.data,
          .y_stride = of.y_stride,
          .batch = of.x.rows,
          .in = of.x.columns,
          .out = of.weight.rows,
          .tf32 = products_in_tf32<T>(),
          .scratch = {of.scratch, cuda::linear_scratch_bytes(of.x.rows, of.weight.columns, of.weight.rows)}};
}

template <typename T>
cuda::LinearBackwardRows cuda_rows(const LinearBackward<T>& of) {
  return {.format = format_of<T>,
          .x = of.x.data,
          .weight = of.weight.data,
          .dy = of.dy.data,
          .dy_stride = of.dy_stride,
          .dx = of.dx.columns == 0 ? nullptr : of.dx.data,
          .gelu_x = of.gelu_x.columns == 0 ? nullptr : of.gelu_x.data,
          .dweight = of.dweight,
          .dbias = of.dbias,
          .accumulate = of.accumulate,
          .batch = of.x.rows,
          .in = of.weight.columns,
          .out = of.weight.rows,
          .tf32 = products_in_tf32<T>(),
          .scratch = {of.scratch, cuda::linear_scratch_bytes(of.x.rows, of.weight.columns, of.weight.rows)}};
}

// Padded rows are for the products of CUDA devices, which run faster on aligned ones.
void require_no_gaps(const Stream& stream, std::size_t stride, bool only_products) {
  if (stride == 0 || (on_cuda(stream) && only_products)) return;
  throw UsageError(
      fmt::format("linear: rows {} elements apart, on {}: only CUDA devices take rows with gaps, and without "
                  "bias, gelu and residual",
                  stride, to_string(stream.device())));
}

template <typename T>
void require_fitting_outputs(const Stream& stream, const LinearForward<T>& of) {
  require_shape("linear: y", of.y, of.x.rows, of.weight.rows);
  const bool gelu = of.gelu.columns != 0;
  const bool residual = of.residual.columns != 0;
  require_no_gaps(stream, of.y_stride, of.bias == nullptr && !gelu && !residual);
  if (gelu) require_shape("linear: gelu", of.gelu, of.x.rows, of.weight.rows);
  if (residual) require_shape("linear: residual", of.residual, of.x.rows, of.weight.rows);
  if (gelu && residual) throw UsageError("linear: gelu and a residual were asked for, but only one can be");
}

}  // namespace

void allow_tf32(bool allowed) { tf32_permission() = allowed; }
bool tf32_allowed() { return tf32_permission(); }

template <Element T>
void linear_forward(Stream& stream, const LinearForward<T>& operation) {
  require_shape("linear: x", operation.x, operation.x.rows, operation.weight.columns);
  require_fitting_outputs(stream, operation);
  if (on_cuda(stream)) {
    cuda::require_products();
    return issue<T>(stream, "linear",
                    [rows = cuda_rows(operation)](void* native) { cuda::linear_forward(native, rows); });
  }
  stream.submit([operation] { forward_now(operation); });
}

template <Element T>
void linear_backward(Stream& stream, const LinearBackward<T>& operation) {
  require_shape("linear: x", operation.x, operation.x.rows, operation.weight.columns);
  require_shape("linear: dy", operation.dy, operation.x.rows, operation.weight.rows);
  if (operation.dx.columns != 0) {
    require_shape("linear: dx", operation.dx, operation.x.rows, operation.weight.columns);
  }
  require_no_gaps(stream, operation.dy_stride, operation.dbias == nullptr);
  if (operation.gelu_x.columns != 0) {
    require_shape("linear: gelu_x", operation.gelu_x, operation.x.rows, operation.weight.columns);
  }
  if (on_cuda(stream)) {
    cuda::require_products();
    return issue<T>(stream, "linear",
                    [rows = cuda_rows(operation)](void* native) { cuda::linear_backward(native, rows); });
  }
  stream.submit([operation] { backward_now(operation); });
}

template <Element T>
std::size_t linear_scratch(std::size_t batch, std::size_t in, std::size_t out, DeviceKind device) {
  if (device == DeviceKind::cuda) return cuda::linear_scratch_bytes(batch, in, out) / sizeof(float);
  return std::max({gemm_scratch<T>(batch, out, in), gemm_scratch<T>(out, in, batch), gemm_scratch<T>(batch, in, out)});
}

namespace {

std::optional<plan::Slice> slice_of(const LinearOptions& options, std::size_t in, std::size_t out, bool bias) {
  if (options.cut == LinearCut::outputs) return plan::Slice{0, out, options.blocks};
  if (options.cut == LinearCut::inputs) return bias ? plan::Slice{} : plan::Slice{1, in};
  return std::nullopt;
}

LinearOptions settled(LinearOptions options) {
  if (!options.slices.any()) options.cut = LinearCut::none;
  return options;
}

}  // namespace

template <Element T>
Linear<T>::Linear(std::size_t in, std::size_t out, const LinearOptions& given)
    : cut_(settled(given).cut),
      has_bias_here_(cut_ != LinearCut::inputs || given.slices.place == 0),
      in_(cut_ == LinearCut::inputs ? given.slices.part(in) : in),
      out_(cut_ == LinearCut::outputs ? given.slices.part(out / given.blocks) * given.blocks : out),
      weight_({out_, in_}, given.initial_weight.value_or(Initial::fan_in(in)),
              {.slice = slice_of(settled(given), in, out, false)}) {
  if (given.bias) {
    bias_.emplace(Shape{out_}, given.initial_bias.value_or(Initial::fan_in(in)),
                  ParameterOptions{.slice = slice_of(settled(given), in, out, true)});
  }
  if (cut_ == LinearCut::none) return;
  const bool outputs = cut_ == LinearCut::outputs;
  const auto make = [&](std::optional<SlicedRows<T>>& rows, CollectiveKind kind, CollectiveWindows windows) {
    const bool overlaps = outputs && windows != CollectiveWindows::forward;
    rows.emplace(kind, given.slices, outputs ? in : out, windows, overlaps);
  };
  using enum CollectiveWindows;
  make(gathered_, CollectiveKind::all_gather, outputs ? forward : of_both);
  make(scattered_, CollectiveKind::reduce_scatter, outputs ? of_input : forward);
  if (outputs) make(again_, CollectiveKind::all_gather, of_weights);
}

// Collectives come in this order in forward windows, and in reverse in backward ones.
template <Element T>
void Linear<T>::visit(ModuleVisitor& visitor) {
  visitor("weight", weight_);
  if (bias_) visitor("bias", *bias_);
  if (scattered_) scattered_->visit(visitor, cut_ == LinearCut::outputs ? "dx" : "y");
  if (again_) again_->visit(visitor, "x_again");
  if (gathered_) gathered_->visit(visitor, cut_ == LinearCut::outputs ? "x" : "dy");
}

template <Element T>
void Linear<T>::multiply(Window& window, ActivationStack& stack, MatrixView<const T> x, Target<T> y,
                         MatrixView<T> gelu) {
  const ScratchScope scope(stack);
  const auto scratch = stack.push<float>(linear_scratch<T>(x.rows, in_, out_, device_of(window, stack)));
  enqueue(window, linear_forward<T>,
          {.x = x,
           .weight = weight(window),
           .bias = bias_ && has_bias_here_ ? parameter_of<T>(window, *bias_) : nullptr,
           .y = y.to,
           .gelu = gelu,
           .residual = y.plus,
           .scratch = scratch.data()});
}

template <Element T>
typename Linear<T>::Saved Linear<T>::forward(Window& window, ActivationStack& stack, MatrixView<const T> x, Target<T> y,
                                             MatrixView<T> gelu) {
  if (cut_ != LinearCut::inputs) {
    const bool gathers = cut_ == LinearCut::outputs;
    multiply(window, stack, gathers ? gathered_->gather(window, x, y.to.rows) : x, y, gelu);
    return {x};
  }
  multiply(window, stack, x, scattered_->summand(window, x.rows), {});
  const MatrixView<const T> sum = scattered_->scatter(window, x.rows);
  if (y.plus.columns == 0) {
    SlicedRows<T>::copy(window, sum, y.to);
  } else {
    enqueue(window, add_dropped<T>, {.residual = y.plus, .x = sum, .y = y.to});
  }
  return {x};
}

template <Element T>
void Linear<T>::multiply_back(Window& window, ActivationStack& stack, const LinearBackward<T>& of,
                              const Wanted& wanted) {
  const ScratchScope scope(stack);
  const auto scratch = stack.push<float>(linear_scratch<T>(of.dy.rows, in_, out_, device_of(window, stack)));
  LinearBackward<T> all = of;
  all.weight = weight(window);
  all.dx = wanted.dx;
  if (wanted.weights) {
    all.dweight = gradient_of<T>(window, weight_);
    all.dbias = bias_ ? gradient_of<T>(window, *bias_) : nullptr;
  }
  all.scratch = scratch.data();
  enqueue(window, linear_backward<T>, all);
}

// Every rank forms the gradient of a bias that all have from all rows. Where outputs are cut, x is gathered again while
// the gradient of x is formed, and that summed while those of the weights are.
template <Element T>
void Linear<T>::backward(Window& window, ActivationStack& stack, const Saved& saved, MatrixView<const T> dy,
                         MatrixView<T> dx, MatrixView<const T> gelu_x) {
  if (cut_ != LinearCut::outputs) {
    const LinearBackward<T> of{.x = saved.x, .weight = {}, .dy = all_of(window, saved, dy), .dx = {}, .gelu_x = gelu_x};
    return multiply_back(window, stack, of, {.dx = dx, .weights = true});
  }
  again_->bring(window, saved.x);
  again_->begin(window);
  LinearBackward<T> of{.x = {nullptr, dy.rows, in_}, .weight = {}, .dy = dy, .dx = {}};
  multiply_back(window, stack, of, {.dx = scattered_->summand(window, dy.rows), .weights = false});
  of.x = again_->gathered(window, dy.rows);
  scattered_->begin(window);
  multiply_back(window, stack, of, {.dx = {}, .weights = true});
  SlicedRows<T>::copy(window, scattered_->scatter(window, dy.rows), dx);
}

template <Element T>
typename Linear<T>::Between Linear<T>::backward_input(Window& window, ActivationStack& stack, const Saved& saved,
                                                      MatrixView<const T> dy, MatrixView<T> dx,
                                                      MatrixView<const T> gelu_x) {
  if (gathered_) gathered_->require_two_passes();
  const bool sums = cut_ == LinearCut::outputs;
  const MatrixView<const T> all = all_of(window, saved, dy);
  const LinearBackward<T> of{.x = {saved.x.data, all.rows, in_}, .weight = {}, .dy = all, .dx = {}, .gelu_x = gelu_x};
  multiply_back(window, stack, of, {.dx = sums ? scattered_->summand(window, all.rows) : dx, .weights = false});
  if (sums) SlicedRows<T>::copy(window, scattered_->scatter(window, all.rows), dx);
  return dy;
}

// Slices gather x, or dy, once more.
template <Element T>
void Linear<T>::backward_parameters(Window& window, ActivationStack& stack, const Saved& saved, const Between& dy) {
  const MatrixView<const T> x = again_ ? again_->gather(window, saved.x, dy.rows) : saved.x;
  multiply_back(window, stack, {.x = x, .weight = {}, .dy = all_of(window, saved, dy), .dx = {}},
                {.dx = {}, .weights = true});
}

// dy of all rows.
template <Element T>
MatrixView<const T> Linear<T>::all_of(Window& window, const Saved& saved, MatrixView<const T> dy) {
  return cut_ == LinearCut::inputs ? gathered_->gather(window, dy, saved.x.rows) : dy;
}

#define TESSERA_LINEAR(T)                                                                                     \
  template TESSERA_EXPORTED void linear_forward(Stream&, const LinearForward<T>&);                            \
  template TESSERA_EXPORTED void linear_backward(Stream&, const LinearBackward<T>&);                          \
  template TESSERA_EXPORTED std::size_t linear_scratch<T>(std::size_t, std::size_t, std::size_t, DeviceKind); \
  template class Linear<T>;
TESSERA_FOR_EACH_ELEMENT(TESSERA_LINEAR)

}  // namespace tessera::nn
