// A small convolutional network: two stages of convolution, relu and pooling, and two linear layers.
#pragma once

#include "tessera/nn/convolution.hpp"
#include "tessera/nn/linear.hpp"
#include "tessera/nn/pooling.hpp"
#include "tessera/nn/relu.hpp"
#include "train_vision/stage.hpp"

namespace examples {

// Convolution of 3 × 3 that keeps the size, relu, the largest of 2 × 2.
template <typename T>
class PooledStage final : public Stage<T> {
 public:
  PooledStage(std::size_t in, std::size_t out);

  void visit(tessera::ModuleVisitor& visitor) override;  // "conv"
  tessera::nn::ImageView<T> push_result(tessera::nn::ActivationStack& stack,
                                        tessera::nn::ConstImageView<T> x) const override;
  void forward(tessera::nn::LayerWindow window, tessera::nn::ActivationStack& stack, tessera::nn::ImageView<const T> x,
               tessera::nn::ImageView<T> y) override;
  void backward(tessera::nn::LayerWindow window, tessera::nn::ActivationStack& stack, tessera::nn::ImageView<T> dy,
                tessera::nn::ImageView<T> dx) override;

 private:
  tessera::nn::Convolution<T> convolution_;
  tessera::nn::Relu<T> relu_;
  tessera::nn::MaxPool<T> pool_;
  typename tessera::nn::Convolution<T>::Saved saved_convolution_;
  typename tessera::nn::MaxPool<T>::Saved saved_pool_;
  tessera::nn::ImageView<T> rectified_;
};

// All pixels of an image in one row, a linear layer, relu, another one.
template <typename T>
class PerceptronHead final : public Head<T> {
 public:
  PerceptronHead(std::size_t in, std::size_t hidden, std::size_t classes, float label_smoothing);

  void visit(tessera::ModuleVisitor& visitor) override;  // "hidden", "output"

 private:
  void compute(tessera::nn::LayerWindow window, tessera::nn::ActivationStack& stack, tessera::nn::ImageView<const T> x,
               tessera::nn::MatrixView<T> logits) override;
  void differentiate(tessera::nn::LayerWindow window, tessera::nn::ActivationStack& stack,
                     tessera::nn::MatrixView<const T> dlogits, tessera::nn::ImageView<T> dx) override;

  tessera::nn::Linear<T> hidden_;
  tessera::nn::Linear<T> output_;
  tessera::nn::Relu<T> relu_;
  typename tessera::nn::Linear<T>::Saved saved_hidden_;
  typename tessera::nn::Linear<T>::Saved saved_output_;
};

}  // namespace examples
