// Residual blocks. Batch norms add the shortcut and rectify as they write: of a block only the convolutions' results
// and what the relus let through stay for the backward pass.
#include "tessera/vision/residual_block.hpp"

#include <cmath>

#include "nn/src/operation.hpp"
#include "tessera/nn/dropout.hpp"
#include "vision/src/names_of_nn.hpp"

namespace tessera::vision {

namespace {

template <typename T>
void add_images(Stream& stream, ConstImageView<T> a, ImageView<T> to) {
  add_dropped<T>(stream, {.residual = ConstImageView<T>(to).rows(), .x = a.rows(), .y = to.rows()});
}

template <typename T>
ImageView<T> pushed_like(ActivationStack& stack, ConstImageView<T> like) {
  return {stack.push<T>(like.elements()).data(), like.images, like.height, like.width, like.channels};
}

ConvolutionShape first_shape(const ResidualShape& of) {
  if (of.bottleneck) return {.in = of.in, .out = of.width, .kernel = 1};
  return {.in = of.in, .out = of.width, .kernel = 3, .stride = of.stride, .padding = 1};
}

ConvolutionShape second_shape(const ResidualShape& of) {
  return {.in = of.width, .out = of.width, .kernel = 3, .stride = of.bottleneck ? of.stride : 1, .padding = 1};
}

BatchNormOptions inner_norm(const ResidualShape& of) {
  return {.synchronised = of.synchronised, .granules = of.granules};
}

BatchNormOptions last_norm(const ResidualShape& of) {
  BatchNormOptions options = inner_norm(of);
  options.initial_weight = of.starts_as_shortcut ? Initial::zeros() : Initial::ones();
  return options;
}

// "downsample": a convolution and its norm, as "0" and "1".
template <typename T>
class ShortcutNames final : public Module {
 public:
  explicit ShortcutNames(NormedConvolution<T>& shortcut) : shortcut_(shortcut) {}
  void visit(ModuleVisitor& visitor) override {
    visitor("0", shortcut_.convolution());
    visitor("1", shortcut_.norm());
  }

 private:
  NormedConvolution<T>& shortcut_;
};

}  // namespace

Initial he_initial(const ConvolutionShape& shape) {
  const auto outputs = static_cast<float>(shape.out * shape.kernel.height * shape.kernel.width);
  return Initial::normal(0.0f, std::sqrt(2.0f / outputs));
}

template <Element T>
NormedConvolution<T>::NormedConvolution(const ConvolutionShape& shape, const BatchNormOptions& norm)
    : convolution_(shape, {.bias = false, .initial_weight = he_initial(shape)}), norm_(shape.out, norm) {}

template <Element T>
typename NormedConvolution<T>::Saved NormedConvolution<T>::forward(Window& window, ActivationStack& stack,
                                                                   ImageView<const T> x, ImageView<T> y,
                                                                   typename BatchNorm<T>::Then then) {
  const ImageView<T> sums = push_result(stack, x);
  Saved saved;
  saved.convolution = convolution_.forward(window, stack, x, sums);
  saved.norm = norm_.forward(window, stack, sums.rows(), y.rows(), then);
  return saved;
}

template <Element T>
void NormedConvolution<T>::backward(Window& window, ActivationStack& stack, const Saved& saved, ImageView<const T> dy,
                                    ImageView<T> dx, const T* relu_y) {
  const ScratchScope scope(stack);
  const ImageView<T> dsums = pushed_like<T>(stack, dy);
  norm_.backward(window, stack, saved.norm, dy.rows(), dsums.rows(), relu_y);
  convolution_.backward(window, stack, saved.convolution, dsums, dx);
}

template <Element T>
ResidualBlock<T>::ResidualBlock(const ResidualShape& shape)
    : shape_(shape),
      first_(first_shape(shape), inner_norm(shape)),
      second_(second_shape(shape), shape.bottleneck ? inner_norm(shape) : last_norm(shape)) {
  if (shape.bottleneck)
    third_.emplace(ConvolutionShape{.in = shape.width, .out = shape.out(), .kernel = 1}, last_norm(shape));
  if (shape.stride != 1 || shape.in != shape.out()) {
    shortcut_.emplace(ConvolutionShape{.in = shape.in, .out = shape.out(), .kernel = 1, .stride = shape.stride},
                      inner_norm(shape));
  }
}

// In the order in which forward() comes to them.
template <Element T>
void ResidualBlock<T>::visit(ModuleVisitor& visitor) {
  if (shortcut_) {
    ShortcutNames<T> names(*shortcut_);
    visitor("downsample", names);
  }
  visitor("conv1", first_.convolution());
  visitor("bn1", first_.norm());
  visitor("conv2", second_.convolution());
  visitor("bn2", second_.norm());
  if (third_) {
    visitor("conv3", third_->convolution());
    visitor("bn3", third_->norm());
  }
}

template <Element T>
ImageView<T> ResidualBlock<T>::push_result(ActivationStack& stack, ConstImageView<T> x) const {
  const HeightWidth size = second_.shape().output(first_.shape().output(x.size()));
  return {stack.push<T>(x.images * size.height * size.width * shape_.out()).data(), x.images, size.height, size.width,
          shape_.out()};
}

template <Element T>
typename ResidualBlock<T>::Saved ResidualBlock<T>::forward(Window& window, ActivationStack& stack, ImageView<const T> x,
                                                           ImageView<T> y) {
  Saved saved;
  ImageView<const T> shortcut = x;
  if (shortcut_) {
    const ImageView<T> result = shortcut_->push_result(stack, x);
    saved.shortcut = shortcut_->forward(window, stack, x, result);
    shortcut = result;
  }
  const typename BatchNorm<T>::Then sum{.residual = shortcut.data, .relu = true};
  saved.first_result = first_.push_result(stack, x);
  saved.first = first_.forward(window, stack, x, saved.first_result, {.relu = true});
  if (third_) {
    saved.second_result = second_.push_result(stack, saved.first_result);
    saved.second = second_.forward(window, stack, saved.first_result, saved.second_result, {.relu = true});
    saved.third = third_->forward(window, stack, saved.second_result, y, sum);
  } else {
    saved.second = second_.forward(window, stack, saved.first_result, y, sum);
  }
  saved.y = y;
  return saved;
}

template <Element T>
void ResidualBlock<T>::branch_backward(Window& window, ActivationStack& stack, const Saved& saved,
                                       ImageView<const T> dy, ImageView<T> dx) {
  const ImageView<T> dfirst = pushed_like<T>(stack, saved.first_result);
  if (third_) {
    const ImageView<T> dsecond = pushed_like<T>(stack, saved.second_result);
    third_->backward(window, stack, saved.third, dy, dsecond);
    second_.backward(window, stack, saved.second, dsecond, dfirst, saved.second_result.data);
  } else {
    second_.backward(window, stack, saved.second, dy, dfirst);
  }
  first_.backward(window, stack, saved.first, dfirst, dx, saved.first_result.data);
}

template <Element T>
void ResidualBlock<T>::backward(Window& window, ActivationStack& stack, const Saved& saved, ImageView<T> dy,
                                ImageView<T> dx) {
  const ScratchScope scope(stack);
  relu_.backward(window, stack, {saved.y.rows()}, dy.rows(), dy.rows());
  branch_backward(window, stack, saved, dy, dx);
  const bool wanted = dx.channels != 0;
  if (!shortcut_) {
    if (wanted) enqueue(window, add_images<T>, dy, dx);
    return;
  }
  const ImageView<T> more = wanted ? pushed_like<T>(stack, dx) : ImageView<T>{};
  shortcut_->backward(window, stack, saved.shortcut, dy, more);
  if (wanted) enqueue(window, add_images<T>, more, dx);
}

#define TESSERA_RESIDUAL_BLOCK(T)      \
  template class NormedConvolution<T>; \
  template class ResidualBlock<T>;
TESSERA_FOR_EACH_ELEMENT(TESSERA_RESIDUAL_BLOCK)

}  // namespace tessera::vision
