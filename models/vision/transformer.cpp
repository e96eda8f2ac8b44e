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
  this->here(saved_) = patches_.forward(window, stack, x, y.rows());
}

template <typename T>
void PatchStage<T>::backward(tessera::Window& window, nn::ActivationStack& stack, tessera::vision::ImageView<T> dy,
                             tessera::vision::ImageView<T> dx) {
  patches_.backward(window, stack, this->here(saved_), dy.rows(), dx);
}

template <typename T>
tessera::vision::ImageView<T> TransformerStage<T>::push_result(nn::ActivationStack& stack,
                                                               tessera::vision::ConstImageView<T> x) const {
  return {stack.push<T>(x.elements()).data(), x.images, x.height, x.width, x.channels};
}

template <typename T>
void TransformerStage<T>::forward(tessera::Window& window, nn::ActivationStack& stack,
                                  tessera::vision::ImageView<const T> x, tessera::vision::ImageView<T> y) {
  this->here(saved_) = block_.forward(window, stack, x.rows(), y.rows(), {.length = x.height});
}

// The gradient of y becomes that of x in its place, which then goes to where it is wanted.
template <typename T>
void TransformerStage<T>::backward(tessera::Window& window, nn::ActivationStack& stack,
                                   tessera::vision::ImageView<T> dy, tessera::vision::ImageView<T> dx) {
  block_.backward(window, stack, this->here(saved_), dy.rows());
  if (dx.channels == 0) return;
  tessera::nn::enqueue(window, tessera::kernels::copy, dx.data, dy.data, tessera::Bytes(dy.elements() * sizeof(T)));
}

template <typename T>
void TransformerStage<T>::backward_input(tessera::Window& window, nn::ActivationStack& stack,
                                         tessera::vision::ImageView<T> gradient) {
  this->here(between_) = block_.backward_input(window, stack, this->here(saved_), gradient.rows());
}

template <typename T>
void TransformerStage<T>::backward(tessera::Window& window, nn::ActivationStack& stack) {
  block_.backward_parameters(window, stack, this->here(saved_), this->here(between_));
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
  this->here(saved_).norm = norm_.forward(window, stack, tokens, normal);
  this->here(saved_).head = head_.forward(window, stack, normal, logits);
}

template <typename T>
void ClassTokenHead<T>::differentiate(tessera::Window& window, nn::ActivationStack& stack,
                                      nn::MatrixView<const T> dlogits, tessera::vision::ImageView<T> dx) {
  const nn::ScratchScope scope(stack);
  const nn::MatrixView<T> gradient = stack.push<T>(dlogits.rows, dim_);
  head_.backward(window, stack, this->here(saved_).head, dlogits, gradient);
  norm_.backward(window, stack, this->here(saved_).norm, gradient, gradient);
  tessera::nn::enqueue(window, tessera::vision::give_class_tokens<T>, dx.height, gradient, dx.rows());
}

// The gradients of the logits and of the norm's result stay: those of parameters are formed from them.
template <typename T>
void ClassTokenHead<T>::backward_input(tessera::Window& window, nn::ActivationStack& stack, nn::MatrixView<T> logits,
                                       tessera::vision::ImageView<T> dx) {
  this->differentiate_loss(window, stack, logits);
  Saved& saved = this->here(saved_);
  const nn::MatrixView<T> of_norm = stack.push<T>(logits.rows, dim_);
  saved.head_between = head_.backward_input(window, stack, saved.head, logits, of_norm);
  const nn::MatrixView<T> of_tokens = stack.push<T>(logits.rows, dim_);
  saved.norm_between = norm_.backward_input(window, stack, saved.norm, of_norm, of_tokens);
  tessera::nn::enqueue(window, tessera::vision::give_class_tokens<T>, dx.height, of_tokens, dx.rows());
}

template <typename T>
void ClassTokenHead<T>::backward(tessera::Window& window, nn::ActivationStack& stack) {
  const Saved& saved = this->here(saved_);
  norm_.backward_parameters(window, stack, saved.norm, saved.norm_between);
  head_.backward_parameters(window, stack, saved.head, saved.head_between);
}

template <typename T>
std::unique_ptr<PatchStage<T>> make_patches(const VisionShape& shape) {
  return std::make_unique<PatchStage<T>>(tessera::vision::PatchShape{.channels = shape.image.channels,
                                                                     .image = {shape.image.height, shape.image.width},
                                                                     .patch = transformer_depth(shape).patch,
                                                                     .dim = shape.width});
}

template <typename T>
std::unique_ptr<TransformerStage<T>> make_transformer_block(const VisionShape& shape, std::size_t index) {
  const TransformerDepth depth = transformer_depth(shape);
  return std::make_unique<TransformerStage<T>>(
      nn::TransformerShape{.dim = shape.width, .heads = depth.heads, .layers = depth.layers, .causal = false}, index);
}

template <typename T>
std::unique_ptr<ClassTokenHead<T>> make_class_head(const VisionShape& shape) {
  return std::make_unique<ClassTokenHead<T>>(shape.width, shape.classes, shape.label_smoothing);
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
template std::unique_ptr<PatchStage<float>> make_patches(const VisionShape&);
template std::unique_ptr<TransformerStage<float>> make_transformer_block(const VisionShape&, std::size_t);
template std::unique_ptr<ClassTokenHead<float>> make_class_head(const VisionShape&);
template std::unique_ptr<PatchStage<tessera::bf16>> make_patches(const VisionShape&);
template std::unique_ptr<TransformerStage<tessera::bf16>> make_transformer_block(const VisionShape&, std::size_t);
template std::unique_ptr<ClassTokenHead<tessera::bf16>> make_class_head(const VisionShape&);
template std::unique_ptr<PatchStage<tessera::fp16>> make_patches(const VisionShape&);
template std::unique_ptr<TransformerStage<tessera::fp16>> make_transformer_block(const VisionShape&, std::size_t);
template std::unique_ptr<ClassTokenHead<tessera::fp16>> make_class_head(const VisionShape&);

}  // namespace models
