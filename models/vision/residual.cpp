// Stem, head and the list of blocks.
#include "models/vision/residual.hpp"

#include <fmt/format.h>

namespace models {

namespace nn = tessera::nn;

namespace {

tessera::vision::ConvolutionShape stem_shape(const StemShape& of) {
  if (of.keeps_size) return {.in = of.in, .out = of.out, .kernel = 3, .padding = 1};
  return {.in = of.in, .out = of.out, .kernel = 7, .stride = 2, .padding = 3};
}

}  // namespace

template <typename T>
Stem<T>::Stem(const StemShape& shape)
    : keeps_size_(shape.keeps_size),
      convolution_(stem_shape(shape), {.synchronised = shape.synchronised, .granules = shape.granules}),
      pool_({.kernel = 3, .stride = 2, .padding = 1}) {}

template <typename T>
void Stem<T>::visit(tessera::ModuleVisitor& visitor) {
  visitor("conv1", convolution_.convolution());
  visitor("bn1", convolution_.norm());
}

template <typename T>
tessera::vision::ImageView<T> Stem<T>::push_result(nn::ActivationStack& stack,
                                                   tessera::vision::ConstImageView<T> x) const {
  if (keeps_size_) return convolution_.push_result(stack, x);
  const tessera::vision::HeightWidth size = convolution_.shape().output(x.size());
  return pool_.push_result(stack, {nullptr, x.images, size.height, size.width, convolution_.shape().out});
}

template <typename T>
void Stem<T>::forward(tessera::Window& window, nn::ActivationStack& stack, tessera::vision::ImageView<const T> x,
                      tessera::vision::ImageView<T> y) {
  rectified_ = keeps_size_ ? y : convolution_.push_result(stack, x);
  saved_convolution_ = convolution_.forward(window, stack, x, rectified_, {.relu = true});
  if (!keeps_size_) saved_pool_ = pool_.forward(window, stack, rectified_, y);
}

template <typename T>
void Stem<T>::backward(tessera::Window& window, nn::ActivationStack& stack, tessera::vision::ImageView<T> dy,
                       tessera::vision::ImageView<T> dx) {
  const nn::ScratchScope scope(stack);
  tessera::vision::ImageView<T> gradient = dy;
  if (!keeps_size_) {
    gradient = rectified_;
    gradient.data = stack.push<T>(rectified_.elements()).data();
    pool_.backward(window, stack, saved_pool_, dy, gradient);
  }
  convolution_.backward(window, stack, saved_convolution_, gradient, dx, rectified_.data);
}

template <typename T>
AverageHead<T>::AverageHead(std::size_t in, std::size_t classes, float label_smoothing)
    : Head<T>(label_smoothing), fc_(in, classes) {}

template <typename T>
void AverageHead<T>::compute(tessera::Window& window, nn::ActivationStack& stack, tessera::vision::ImageView<const T> x,
                             nn::MatrixView<T> logits) {
  const nn::MatrixView<T> mean = stack.push<T>(x.images, x.channels);
  average_.forward(window, stack, x, mean);
  saved_fc_ = fc_.forward(window, stack, mean, logits);
}

template <typename T>
void AverageHead<T>::differentiate(tessera::Window& window, nn::ActivationStack& stack, nn::MatrixView<const T> dlogits,
                                   tessera::vision::ImageView<T> dx) {
  const nn::ScratchScope scope(stack);
  const nn::MatrixView<T> dmean = stack.push<T>(dlogits.rows, fc_.in());
  fc_.backward(window, stack, saved_fc_, dlogits, dmean);
  average_.backward(window, stack, {}, dmean, dx);
}

std::vector<NamedBlock> residual_blocks(std::size_t width, const std::vector<std::size_t>& blocks, bool bottleneck) {
  std::vector<NamedBlock> result;
  std::size_t channels = width;
  for (std::size_t layer = 0; layer < blocks.size(); ++layer) {
    for (std::size_t block = 0; block < blocks[layer]; ++block) {
      const tessera::vision::ResidualShape shape{.in = channels,
                                                 .width = width << layer,
                                                 .stride = layer > 0 && block == 0 ? std::size_t{2} : std::size_t{1},
                                                 .bottleneck = bottleneck,
                                                 .starts_as_shortcut = true};
      result.push_back({fmt::format("layer{}.{}", layer + 1, block), shape});
      channels = shape.out();
    }
  }
  return result;
}

template class Stem<float>;
template class Stem<tessera::bf16>;
template class Stem<tessera::fp16>;
template class AverageHead<float>;
template class AverageHead<tessera::bf16>;
template class AverageHead<tessera::fp16>;

}  // namespace models
