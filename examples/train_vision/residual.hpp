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
  tessera::nn::ImageView<T> push_result(tessera::nn::ActivationStack& stack,
                                        tessera::nn::ConstImageView<T> x) const override;
  void forward(tessera::nn::LayerWindow window, tessera::nn::ActivationStack& stack, tessera::nn::ImageView<const T> x,
               tessera::nn::ImageView<T> y) override;
  void backward(tessera::nn::LayerWindow window, tessera::nn::ActivationStack& stack, tessera::nn::ImageView<T> dy,
                tessera::nn::ImageView<T> dx) override;

 private:
  bool keeps_size_;
  tessera::nn::NormedConvolution<T> convolution_;
  tessera::nn::MaxPool<T> pool_;
  typename tessera::nn::NormedConvolution<T>::Saved saved_convolution_;
  typename tessera::nn::MaxPool<T>::Saved saved_pool_;
  tessera::nn::ImageView<T> rectified_;
};

template <typename T>
class ResidualStage final : public Stage<T> {
 public:
  explicit ResidualStage(const tessera::nn::ResidualShape& shape) : block_(shape) {}

  void visit(tessera::ModuleVisitor& visitor) override { block_.visit(visitor); }
  tessera::nn::ImageView<T> push_result(tessera::nn::ActivationStack& stack,
                                        tessera::nn::ConstImageView<T> x) const override {
    return block_.push_result(stack, x);
  }
  void forward(tessera::nn::LayerWindow window, tessera::nn::ActivationStack& stack, tessera::nn::ImageView<const T> x,
               tessera::nn::ImageView<T> y) override {
    saved_ = block_.forward(window, stack, x, y);
  }
  void backward(tessera::nn::LayerWindow window, tessera::nn::ActivationStack& stack, tessera::nn::ImageView<T> dy,
                tessera::nn::ImageView<T> dx) override {
    block_.backward(window, stack, saved_, dy, dx);
  }

 private:
  tessera::nn::ResidualBlock<T> block_;
  typename tessera::nn::ResidualBlock<T>::Saved saved_;
};

template <typename T>
class AverageHead final : public Head<T> {
 public:
  AverageHead(std::size_t in, std::size_t classes, float label_smoothing);

  void visit(tessera::ModuleVisitor& visitor) override { fc_.visit(visitor); }

 private:
  void compute(tessera::nn::LayerWindow window, tessera::nn::ActivationStack& stack, tessera::nn::ImageView<const T> x,
               tessera::nn::MatrixView<T> logits) override;
  void differentiate(tessera::nn::LayerWindow window, tessera::nn::ActivationStack& stack,
                     tessera::nn::MatrixView<const T> dlogits, tessera::nn::ImageView<T> dx) override;

  tessera::nn::GlobalAverage<T> average_;
  tessera::nn::Linear<T> fc_;
  typename tessera::nn::Linear<T>::Saved saved_fc_;
};

// Channels and strides of all blocks, in their order, with names "layer1.0" and so on: of a network with `blocks`
// blocks in its four layers.
struct NamedBlock {
  std::string name;
  tessera::nn::ResidualShape shape;
};
std::vector<NamedBlock> residual_blocks(std::size_t width, const std::vector<std::size_t>& blocks, bool bottleneck);

}  // namespace examples
