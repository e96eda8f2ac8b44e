// A small convolutional network: two stages of convolution, pooling and relu, and two linear layers.
#pragma once

#include "models/vision/stage.hpp"
#include "tessera/nn/linear.hpp"
#include "tessera/nn/relu.hpp"
#include "tessera/vision/convolution.hpp"
#include "tessera/vision/pooling.hpp"

namespace models {

// Convolution of 3 × 3 that keeps the size, the largest of 2 × 2, relu.
template <typename T>
class PooledStage final : public Stage<T> {
 public:
  PooledStage(std::size_t in, std::size_t out);

  void visit(tessera::ModuleVisitor& visitor) override;  // "conv"
  tessera::vision::ImageView<T> push_result(nn::ActivationStack& stack,
                                            tessera::vision::ConstImageView<T> x) const override;
  void forward(tessera::Window& window, nn::ActivationStack& stack, tessera::vision::ImageView<const T> x,
               tessera::vision::ImageView<T> y) override;
  void backward(tessera::Window& window, nn::ActivationStack& stack, tessera::vision::ImageView<T> dy,
                tessera::vision::ImageView<T> dx) override;

 private:
  tessera::vision::Convolution<T> convolution_;
  nn::Relu<T> relu_;
  tessera::vision::MaxPool<T> pool_;
  typename tessera::vision::Convolution<T>::Saved saved_convolution_;
  typename tessera::vision::MaxPool<T>::Saved saved_pool_;
  typename nn::Relu<T>::Saved saved_relu_;
  tessera::vision::ImageView<T> convolved_;
};

// All pixels of an image in one row, a linear layer, relu, another one.
template <typename T>
class PerceptronHead final : public Head<T> {
 public:
  PerceptronHead(std::size_t in, std::size_t hidden, std::size_t classes, float label_smoothing);

  void visit(tessera::ModuleVisitor& visitor) override;  // "hidden", "output"

 private:
  void compute(tessera::Window& window, nn::ActivationStack& stack, tessera::vision::ImageView<const T> x,
               nn::MatrixView<T> logits) override;
  void differentiate(tessera::Window& window, nn::ActivationStack& stack, nn::MatrixView<const T> dlogits,
                     tessera::vision::ImageView<T> dx) override;

  nn::Linear<T> hidden_;
  nn::Linear<T> output_;
  nn::Relu<T> relu_;
  typename nn::Linear<T>::Saved saved_hidden_;
  typename nn::Linear<T>::Saved saved_output_;
};

}  // namespace models
