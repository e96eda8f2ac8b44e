// Stages of a vision transformer. Nothing is dropped: with augmented images such small models need no dropout.
#include "models/vision/transformer.hpp"

#include "tessera/kernels/elementwise.hpp"

namespace models {

namespace nn = tessera::nn;

template <typename T>
tessera::vision::ImageView<T> PatchStage<T>::push_result(nn::ActivationStack& stack,
                                                         tessera::vision::ConstImageView<T> x) const {
  const tessera::vision::PatchShape& shape = patches_.shape();
  const std::size_t elements = x.images * shape.tokens() * shape.dim;
  return {stack.push<T>(elements).data(), x.images, shape.tokens(), 1, shape.dim};
}

template <typename T>
void PatchStage<T>::forward(tessera::Window& window, nn::ActivationStack& stack, tessera::vision::ImageView<const T> x,
                            tessera::vision::ImageView<T> y) {
  saved_ = patches_.forward(window, stack, x, y.rows());
}

template <typename T>
void PatchStage<T>::backward(tessera::Window& window, nn::ActivationStack& stack, tessera::vision::ImageView<T> dy,
                             tessera::vision::ImageView<T> dx) {
  patches_.backward(window, stack, saved_, dy.rows(), dx);
}

template <typename T>
tessera::vision::ImageView<T> TransformerStage<T>::push_result(nn::ActivationStack& stack,
                                                               tessera::vision::ConstImageView<T> x) const {
  return {stack.push<T>(x.elements()).data(), x.images, x.height, x.width, x.channels};
}

template <typename T>
void TransformerStage<T>::forward(tessera::Window& window, nn::ActivationStack& stack,
                                  tessera::vision::ImageView<const T> x, tessera::vision::ImageView<T> y) {
  saved_ = block_.forward(window, stack, x.rows(), y.rows(), {.length = x.height});
}

// The gradient of y becomes that of x in its place, which then goes to where it is wanted.
template <typename T>
void TransformerStage<T>::backward(tessera::Window& window, nn::ActivationStack& stack,
                                   tessera::vision::ImageView<T> dy, tessera::vision::ImageView<T> dx) {
  block_.backward(window, stack, saved_, dy.rows());
  if (dx.channels == 0) return;
  tessera::nn::enqueue(window, tessera::kernels::copy, dx.data, dy.data, tessera::Bytes(dy.elements() * sizeof(T)));
}

template <typename T>
ClassTokenHead<T>::ClassTokenHead(std::size_t dim, std::size_t classes, float label_smoothing)
    : Head<T>(label_smoothing), norm_(dim), head_(dim, classes), dim_(dim) {}

template <typename T>
void ClassTokenHead<T>::visit(tessera::ModuleVisitor& visitor) {
  visitor("norm", norm_);
  visitor("head", head_);
}

template <typename T>
void ClassTokenHead<T>::compute(tessera::Window& window, nn::ActivationStack& stack,
                                tessera::vision::ImageView<const T> x, nn::MatrixView<T> logits) {
  const nn::MatrixView<T> tokens = stack.push<T>(x.images, dim_);
  const nn::MatrixView<T> normal = stack.push<T>(x.images, dim_);
  tessera::nn::enqueue(window, tessera::vision::take_class_tokens<T>, x.height, x.rows(), tokens);
  saved_norm_ = norm_.forward(window, stack, tokens, normal);
  saved_head_ = head_.forward(window, stack, normal, logits);
}

template <typename T>
void ClassTokenHead<T>::differentiate(tessera::Window& window, nn::ActivationStack& stack,
                                      nn::MatrixView<const T> dlogits, tessera::vision::ImageView<T> dx) {
  const nn::ScratchScope scope(stack);
  const nn::MatrixView<T> gradient = stack.push<T>(dlogits.rows, dim_);
  head_.backward(window, stack, saved_head_, dlogits, gradient);
  norm_.backward(window, stack, saved_norm_, gradient, gradient);
  tessera::nn::enqueue(window, tessera::vision::give_class_tokens<T>, dx.height, gradient, dx.rows());
}

template class PatchStage<float>;
template class PatchStage<tessera::bf16>;
template class PatchStage<tessera::fp16>;
template class TransformerStage<float>;
template class TransformerStage<tessera::bf16>;
template class TransformerStage<tessera::fp16>;
template class ClassTokenHead<float>;
template class ClassTokenHead<tessera::bf16>;
template class ClassTokenHead<tessera::fp16>;

}  // namespace models
