// A residual network (He et al. 2016): a stem, blocks, and the mean over the pixels with a linear layer.
#pragma once

#include "tessera/nn/linear.hpp"
#include "tessera/nn/pooling.hpp"
#include "tessera/nn/residual_block.hpp"
#include "train_vision/stage.hpp"

namespace examples {

struct StemShape {
  std::size_t in;
  std::size_t out;
  bool keeps_size;
  bool synchronised;  // its batch norm is, over all ranks
};

// For small images a convolution of 3 × 3 that keeps their size; for large ones of 7 × 7 with stride 2, and then the
// largest of 3 × 3 with stride 2. Batch norm and relu between.
template <typename T>
class Stem final : public Stage<T> {
 public:
  explicit Stem(const StemShape& shape);

  void visit(tessera::ModuleVisitor& visitor) override;  // "conv1", "bn1"
  nn::ImageView<T> push_result(nn::ActivationStack& stack, nn::ConstImageView<T> x) const override;
  void forward(nn::LayerWindow window, nn::ActivationStack& stack, nn::ImageView<const T> x,
               nn::ImageView<T> y) override;
  void backward(nn::LayerWindow window, nn::ActivationStack& stack, nn::ImageView<T> dy, nn::ImageView<T> dx) override;

 private:
  bool keeps_size_;
  nn::NormedConvolution<T> convolution_;
  nn::MaxPool<T> pool_;
  typename nn::NormedConvolution<T>::Saved saved_convolution_;
  typename nn::MaxPool<T>::Saved saved_pool_;
  nn::ImageView<T> rectified_;
};

template <typename T>
class ResidualStage final : public Stage<T> {
 public:
  explicit ResidualStage(const nn::ResidualShape& shape) : block_(shape) {}

  void visit(tessera::ModuleVisitor& visitor) override { block_.visit(visitor); }
  nn::ImageView<T> push_result(nn::ActivationStack& stack, nn::ConstImageView<T> x) const override {
    return block_.push_result(stack, x);
  }
  void forward(nn::LayerWindow window, nn::ActivationStack& stack, nn::ImageView<const T> x,
               nn::ImageView<T> y) override {
    saved_ = block_.forward(window, stack, x, y);
  }
  void backward(nn::LayerWindow window, nn::ActivationStack& stack, nn::ImageView<T> dy, nn::ImageView<T> dx) override {
    block_.backward(window, stack, saved_, dy, dx);
  }

 private:
  nn::ResidualBlock<T> block_;
  typename nn::ResidualBlock<T>::Saved saved_;
};

template <typename T>
class AverageHead final : public Head<T> {
 public:
  AverageHead(std::size_t in, std::size_t classes, float label_smoothing);

  void visit(tessera::ModuleVisitor& visitor) override { fc_.visit(visitor); }

 private:
  void compute(nn::LayerWindow window, nn::ActivationStack& stack, nn::ImageView<const T> x,
               nn::MatrixView<T> logits) override;
  void differentiate(nn::LayerWindow window, nn::ActivationStack& stack, nn::MatrixView<const T> dlogits,
                     nn::ImageView<T> dx) override;

  nn::GlobalAverage<T> average_;
  nn::Linear<T> fc_;
  typename nn::Linear<T>::Saved saved_fc_;
};

// Channels and strides of all blocks, in their order, with names "layer1.0" and so on: of a network with `blocks`
// blocks in its four layers.
struct NamedBlock {
  std::string name;
  nn::ResidualShape shape;
};
std::vector<NamedBlock> residual_blocks(std::size_t width, const std::vector<std::size_t>& blocks, bool bottleneck);

}  // namespace examples
