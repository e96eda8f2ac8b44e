// Convolutions: what computes them is chosen by what the build and the processor have, never by a timing.
#include "tessera/vision/convolution.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "nn/src/cuda/product.hpp"
#include "nn/src/exported.hpp"
#include "nn/src/operation.hpp"
#include "nn/src/products/onednn.hpp"
#include "nn/src/rows/active_rows.hpp"
#include "nn/src/shared_rows.hpp"
#include "tessera/base/error.hpp"
#include "vision/src/convolution/choice.hpp"
#include "vision/src/convolution/geometry.hpp"
#include "vision/src/convolution/lowered.hpp"
#include "vision/src/convolution/onednn.hpp"
#include "vision/src/cuda/convolution_choice.hpp"
#include "vision/src/cuda/kernels.hpp"

namespace tessera::vision {

namespace {

std::string in_words(HeightWidth size) { return fmt::format("{} x {}", size.height, size.width); }

std::size_t output_along(std::size_t image, std::size_t kernel, std::size_t stride, std::size_t padding,
                         std::size_t dilation) {
  const std::size_t reach = (kernel - 1) * dilation + 1;
  const std::size_t padded = image + 2 * padding;
  return padded < reach ? 0 : (padded - reach) / stride + 1;
}

std::uint32_t number(std::size_t extent) {
  if (extent > std::numeric_limits<std::int32_t>::max()) {
    throw UsageError(fmt::format("convolution: an extent of {} is beyond what can be counted", extent));
  }
  return static_cast<std::uint32_t>(extent);
}
Pair32 numbers(HeightWidth size) { return {number(size.height), number(size.width)}; }

ConvolutionGeometry geometry_of(const ConvolutionShape& shape, std::size_t images, HeightWidth image) {
  return {.images = number(images),
          .image = numbers(image),
          .result = numbers(shape.output(image)),
          .in = number(shape.in),
          .out = number(shape.out),
          .kernel = numbers(shape.kernel),
          .stride = numbers(shape.stride),
          .padding = numbers(shape.padding),
          .dilation = numbers(shape.dilation),
          .groups = number(shape.groups)};
}

template <typename T>
void require_images(std::string_view what, ImageView<T> view, std::size_t images, HeightWidth size,
                    std::size_t channels) {
  if (view.images == images && view.size() == size && view.channels == channels) return;
  throw UsageError(fmt::format("convolution: {} must be {} images of {} with {} channels, but is {} of {} with {}",
                               what, images, in_words(size), channels, view.images, in_words(view.size()),
                               view.channels));
}

template <typename T>
bool by_library(const ConvolutionGeometry& of) {
  return convolutions::active() == convolutions::Set::onednn && convolutions::by_onednn::convolves<T>() &&
         convolutions::by_onednn::has_kernels<T>(of);
}

// Kernels of CUDA devices count an image's elements in 32 bits.
template <typename T>
cuda::ConvolutionTask cuda_task(const ConvolutionGeometry& of) {
  constexpr std::size_t most = std::size_t{1} << 31;
  const std::size_t seen = std::size_t{of.result.height} * of.result.width * of.depth();
  if (seen >= most || of.x_of_image() >= most) {
    throw UsageError(
        fmt::format("convolution: of one image of {} x {} the kernel sees {} elements, and a CUDA device takes fewer "
                    "than 2^31",
                    of.image.height, of.image.width, seen));
  }
  return {.format = format_of<T>, .tf32 = products_in_tf32<T>(), .images_at_once = cuda::images_at_once(of), .of = of};
}

template <typename T>
void bias_gradient(const ConvolutionBackwardWork<T>& work) {
  run_shared(active_rows(), SumRows{.format = format_of<T>,
                                    .from = work.dy,
                                    .stride = work.of.out,
                                    .step = 1,
                                    .count = std::size_t{work.of.images} * work.of.result.height * work.of.result.width,
                                    .dim = work.of.out,
                                    .to = work.dbias,
                                    .accumulate = work.accumulate});
}

}  // namespace

void ConvolutionShape::check() const {
  const auto refuse = [](const std::string& why) { throw UsageError("convolution: " + why); };
  for (const std::size_t extent :
       {in, out, kernel.height, kernel.width, stride.height, stride.width, dilation.height, dilation.width, groups}) {
    if (extent == 0) refuse("channels, kernel, stride, dilation and groups must be above 0");
  }
  if (in % groups != 0 || out % groups != 0) {
    refuse(fmt::format("{} groups must divide {} input and {} output channels", groups, in, out));
  }
}

HeightWidth ConvolutionShape::output(HeightWidth image) const {
  const HeightWidth size{output_along(image.height, kernel.height, stride.height, padding.height, dilation.height),
                         output_along(image.width, kernel.width, stride.width, padding.width, dilation.width)};
  if (size.height == 0 || size.width == 0) {
    throw UsageError(fmt::format("convolution: images of {}, padded by {}, are smaller than the kernel of {} reaches",
                                 in_words(image), in_words(padding), in_words(kernel)));
  }
  return size;
}

template <Element T>
void convolution_forward(Stream& stream, const ConvolutionForward<T>& of) {
  of.shape.check();
  require_images("x", of.x, of.x.images, of.x.size(), of.shape.in);
  require_images("y", of.y, of.x.images, of.shape.output(of.x.size()), of.shape.out);
  const ConvolutionGeometry geometry = geometry_of(of.shape, of.x.images, of.x.size());
  if (on_cuda(stream)) {
    cuda::require_products();
    const cuda::ConvolutionForwardRows rows{.task = cuda_task<T>(geometry),
                                            .x = of.x.data,
                                            .weight = of.weight,
                                            .bias = of.bias,
                                            .y = of.y.data,
                                            .scratch = of.scratch};
    return issue<T>(stream, "convolution", [rows](void* native) { cuda::convolution_forward(native, rows); });
  }
  const ConvolutionForwardWork<T> work{
      .of = geometry, .x = of.x.data, .weight = of.weight, .bias = of.bias, .y = of.y.data, .scratch = of.scratch};
  stream.submit([work] {
    by_library<T>(work.of) ? convolutions::by_onednn::forward(work) : convolutions::lowered::forward(work);
  });
}

template <Element T>
void convolution_backward(Stream& stream, const ConvolutionBackward<T>& of) {
  of.shape.check();
  require_images("x", of.x, of.x.images, of.x.size(), of.shape.in);
  require_images("dy", of.dy, of.x.images, of.shape.output(of.x.size()), of.shape.out);
  const bool dx = of.dx.channels != 0;
  if (dx) require_images("dx", of.dx, of.x.images, of.x.size(), of.shape.in);
  const ConvolutionGeometry geometry = geometry_of(of.shape, of.x.images, of.x.size());
  if (on_cuda(stream)) {
    cuda::require_products();
    const cuda::ConvolutionBackwardRows rows{.task = cuda_task<T>(geometry),
                                             .x = of.x.data,
                                             .weight = of.weight,
                                             .dy = of.dy.data,
                                             .dx = dx ? of.dx.data : nullptr,
                                             .dweight = of.dweight,
                                             .dbias = of.dbias,
                                             .accumulate = of.accumulate,
                                             .scratch = of.scratch};
    return issue<T>(stream, "convolution", [rows](void* native) { cuda::convolution_backward(native, rows); });
  }
  const ConvolutionBackwardWork<T> work{.of = geometry,
                                        .x = of.x.data,
                                        .weight = of.weight,
                                        .dy = of.dy.data,
                                        .dx = dx ? of.dx.data : nullptr,
                                        .dweight = of.dweight,
                                        .dbias = of.dbias,
                                        .accumulate = of.accumulate,
                                        .scratch = of.scratch};
  stream.submit([work] {
    if (work.dbias != nullptr) bias_gradient(work);
    by_library<T>(work.of) ? convolutions::by_onednn::backward(work) : convolutions::lowered::backward(work);
  });
}

template <Element T>
std::size_t convolution_scratch(const ConvolutionShape& shape, std::size_t images, HeightWidth image,
                                DeviceKind device) {
  shape.check();
  const ConvolutionGeometry of = geometry_of(shape, images, image);
  if (device == DeviceKind::cuda) {
    return cuda::convolution_scratch_bytes(format_of<T>, of, cuda::images_at_once(of)) / sizeof(float);
  }
  return by_library<T>(of) ? convolutions::by_onednn::scratch<T>(of) : convolutions::lowered::scratch<T>(of);
}

std::string convolutions_in_words(DeviceKind device) {
  if (device == DeviceKind::cuda) return cuda::convolutions::in_words();
  return convolutions::active() == convolutions::Set::onednn ? "by " + onednn::in_words() : "as products";
}

template <Element T>
Convolution<T>::Convolution(const ConvolutionShape& shape, const ConvolutionOptions& options)
    : shape_((shape.check(), shape)),
      weight_({shape.out, shape.in / shape.groups, shape.kernel.height, shape.kernel.width},
              options.initial_weight.value_or(
                  Initial::fan_in(shape.in / shape.groups * shape.kernel.height * shape.kernel.width))) {
  const std::size_t fan_in = shape.in / shape.groups * shape.kernel.height * shape.kernel.width;
  if (options.bias) bias_.emplace(Shape{shape.out}, options.initial_bias.value_or(Initial::fan_in(fan_in)));
}

template <Element T>
void Convolution<T>::visit(ModuleVisitor& visitor) {
  visitor("weight", weight_);
  if (bias_) visitor("bias", *bias_);
}

template <Element T>
ImageView<T> Convolution<T>::push_result(ActivationStack& stack, ConstImageView<T> x) const {
  const HeightWidth size = shape_.output(x.size());
  return {stack.push<T>(x.images * size.height * size.width * shape_.out).data(), x.images, size.height, size.width,
          shape_.out};
}

template <Element T>
typename Convolution<T>::Saved Convolution<T>::forward(Window& window, ActivationStack& stack, ImageView<const T> x,
                                                       ImageView<T> y) {
  const ScratchScope scope(stack);
  const auto scratch = stack.push<float>(convolution_scratch<T>(shape_, x.images, x.size(), device_of(window, stack)));
  enqueue(window, convolution_forward<T>,
          {.shape = shape_,
           .x = x,
           .weight = parameter_of<T>(window, weight_),
           .bias = bias_ ? parameter_of<T>(window, *bias_) : nullptr,
           .y = y,
           .scratch = scratch.data()});
  return {x};
}

template <Element T>
void Convolution<T>::backward(Window& window, ActivationStack& stack, const Saved& saved, ImageView<const T> dy,
                              ImageView<T> dx) {
  const ScratchScope scope(stack);
  const auto scratch =
      stack.push<float>(convolution_scratch<T>(shape_, saved.x.images, saved.x.size(), device_of(window, stack)));
  enqueue(window, convolution_backward<T>,
          {.shape = shape_,
           .x = saved.x,
           .weight = parameter_of<T>(window, weight_),
           .dy = dy,
           .dx = dx,
           .dweight = gradient_of<T>(window, weight_),
           .dbias = bias_ ? gradient_of<T>(window, *bias_) : nullptr,
           .scratch = scratch.data()});
}

#define TESSERA_CONVOLUTION(T)                                                                                    \
  template TESSERA_EXPORTED void convolution_forward(Stream&, const ConvolutionForward<T>&);                      \
  template TESSERA_EXPORTED void convolution_backward(Stream&, const ConvolutionBackward<T>&);                    \
  template TESSERA_EXPORTED std::size_t convolution_scratch<T>(const ConvolutionShape&, std::size_t, HeightWidth, \
                                                               DeviceKind);                                       \
  template class Convolution<T>;
TESSERA_FOR_EACH_ELEMENT(TESSERA_CONVOLUTION)

}  // namespace tessera::vision
