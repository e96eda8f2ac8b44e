// The largest of what a relu lets through is what it lets through of the largest: pooling comes first, and the relu
// works on a quarter of the pixels, in place. A stage keeps the places of the largest, and room for the gradient of
// all.
#include "models/vision/convolutional.hpp"

namespace models {

namespace nn = tessera::nn;

template <typename T>
PooledStage<T>::PooledStage(std::size_t in, std::size_t out)
    : convolution_({.in = in, .out = out, .kernel = 3, .padding = 1}), pool_({.kernel = 2}) {}

template <typename T>
void PooledStage<T>::visit(tessera::ModuleVisitor& visitor) {
  visitor("conv", convolution_);
}

template <typename T>
tessera::vision::ImageView<T> PooledStage<T>::push_result(nn::ActivationStack& stack,
                                                          tessera::vision::ConstImageView<T> x) const {
  return pool_.push_result(stack, {nullptr, x.images, x.height, x.width, convolution_.shape().out});
}

template <typename T>
void PooledStage<T>::forward(tessera::Window& window, nn::ActivationStack& stack, tessera::vision::ImageView<const T> x,
                             tessera::vision::ImageView<T> y) {
  convolved_ = convolution_.push_result(stack, x);
  saved_convolution_ = convolution_.forward(window, stack, x, convolved_);
  saved_pool_ = pool_.forward(window, stack, convolved_, y);
  saved_relu_ = relu_.forward(window, stack, y.rows(), y.rows());
}

template <typename T>
void PooledStage<T>::backward(tessera::Window& window, nn::ActivationStack& stack, tessera::vision::ImageView<T> dy,
                              tessera::vision::ImageView<T> dx) {
  relu_.backward(window, stack, saved_relu_, dy.rows(), dy.rows());
  pool_.backward(window, stack, saved_pool_, dy, convolved_);
  convolution_.backward(window, stack, saved_convolution_, convolved_, dx);
}

template <typename T>
PerceptronHead<T>::PerceptronHead(std::size_t in, std::size_t hidden, std::size_t classes, float label_smoothing)
    : Head<T>(label_smoothing), hidden_(in, hidden), output_(hidden, classes) {}

template <typename T>
void PerceptronHead<T>::visit(tessera::ModuleVisitor& visitor) {
  visitor("hidden", hidden_);
  visitor("output", output_);
}

template <typename T>
void PerceptronHead<T>::compute(tessera::Window& window, nn::ActivationStack& stack,
                                tessera::vision::ImageView<const T> x, nn::MatrixView<T> logits) {
  const nn::MatrixView<T> hidden = stack.push<T>(x.images, hidden_.out());
  saved_hidden_ = hidden_.forward(window, stack, x.flat(), hidden);
  relu_.forward(window, stack, hidden, hidden);
  saved_output_ = output_.forward(window, stack, hidden, logits);
}

template <typename T>
void PerceptronHead<T>::differentiate(tessera::Window& window, nn::ActivationStack& stack,
                                      nn::MatrixView<const T> dlogits, tessera::vision::ImageView<T> dx) {
  const nn::ScratchScope scope(stack);
  const nn::MatrixView<T> dhidden = stack.push<T>(dlogits.rows, hidden_.out());
  output_.backward(window, stack, saved_output_, dlogits, dhidden);
  relu_.backward(window, stack, {saved_output_.x}, dhidden, dhidden);
  hidden_.backward(window, stack, saved_hidden_, dhidden, dx.flat());
}

template class PooledStage<float>;
template class PooledStage<tessera::bf16>;
template class PooledStage<tessera::fp16>;
template class PerceptronHead<float>;
template class PerceptronHead<tessera::bf16>;
template class PerceptronHead<tessera::fp16>;

}  // namespace models
