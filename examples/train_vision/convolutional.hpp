// A small convolutional network: two stages of convolution, pooling and relu, and two linear layers.
#pragma once

#include "tessera/nn/convolution.hpp"
#include "tessera/nn/linear.hpp"
#include "tessera/nn/pooling.hpp"
#include "tessera/nn/relu.hpp"
#include "train_vision/stage.hpp"

namespace examples {

// Convolution of 3 × 3 that keeps the size, the largest of 2 × 2, relu.
template <typename T>
class PooledStage final : public Stage<T> {
 public:
  PooledStage(std::size_t in, std::size_t out);

  void visit(tessera::ModuleVisitor& visitor) override;  // "conv"
  nn::ImageView<T> push_result(nn::ActivationStack& stack, nn::ConstImageView<T> x) const override;
  void forward(nn::LayerWindow window, nn::ActivationStack& stack, nn::ImageView<const T> x,
               nn::ImageView<T> y) override;
  void backward(nn::LayerWindow window, nn::ActivationStack& stack, nn::ImageView<T> dy, nn::ImageView<T> dx) override;

 private:
  nn::Convolution<T> convolution_;
  nn::Relu<T> relu_;
  nn::MaxPool<T> pool_;
  typename nn::Convolution<T>::Saved saved_convolution_;
  typename nn::MaxPool<T>::Saved saved_pool_;
  typename nn::Relu<T>::Saved saved_relu_;
  nn::ImageView<T> convolved_;
};

// All pixels of an image in one row, a linear layer, relu, another one.
template <typename T>
class PerceptronHead final : public Head<T> {
 public:
  PerceptronHead(std::size_t in, std::size_t hidden, std::size_t classes, float label_smoothing);

  void visit(tessera::ModuleVisitor& visitor) override;  // "hidden", "output"

 private:
  void compute(nn::LayerWindow window, nn::ActivationStack& stack, nn::ImageView<const T> x,
               nn::MatrixView<T> logits) override;
  void differentiate(nn::LayerWindow window, nn::ActivationStack& stack, nn::MatrixView<const T> dlogits,
                     nn::ImageView<T> dx) override;

  nn::Linear<T> hidden_;
  nn::Linear<T> output_;
  nn::Relu<T> relu_;
  typename nn::Linear<T>::Saved saved_hidden_;
  typename nn::Linear<T>::Saved saved_output_;
};

}  // namespace examples
