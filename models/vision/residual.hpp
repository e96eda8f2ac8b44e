// A residual network (He et al. 2016): a stem, blocks, and the mean over the pixels with a linear layer.
#pragma once

#include "models/vision/stage.hpp"
#include "tessera/nn/linear.hpp"
#include "tessera/vision/pooling.hpp"
#include "tessera/vision/residual_block.hpp"

namespace models {

struct StemShape {
  std::size_t in;
  std::size_t out;
  bool keeps_size;
  bool synchronised;  // its batch norm is, over all ranks
  bool granules;      // its batch norm is of granules
};

// For small images a convolution of 3 × 3 that keeps their size; for large ones of 7 × 7 with stride 2, and then the
// largest of 3 × 3 with stride 2. Batch norm and relu between.
template <typename T>
class Stem final : public Stage<T> {
 public:
  explicit Stem(const StemShape& shape);

  void visit(tessera::ModuleVisitor& visitor) override;  // "conv1", "bn1"
  tessera::vision::ImageView<T> push_result(nn::ActivationStack& stack,
                                            tessera::vision::ConstImageView<T> x) const override;
  void forward(tessera::Window& window, nn::ActivationStack& stack, tessera::vision::ImageView<const T> x,
               tessera::vision::ImageView<T> y) override;
  void backward(tessera::Window& window, nn::ActivationStack& stack, tessera::vision::ImageView<T> dy,
                tessera::vision::ImageView<T> dx) override;

 private:
  bool keeps_size_;
  tessera::vision::NormedConvolution<T> convolution_;
  tessera::vision::MaxPool<T> pool_;
  typename tessera::vision::NormedConvolution<T>::Saved saved_convolution_;
  typename tessera::vision::MaxPool<T>::Saved saved_pool_;
  tessera::vision::ImageView<T> rectified_;
};

template <typename T>
class ResidualStage final : public Stage<T> {
 public:
  explicit ResidualStage(const tessera::vision::ResidualShape& shape) : block_(shape) {}

  void visit(tessera::ModuleVisitor& visitor) override { block_.visit(visitor); }
  tessera::vision::ImageView<T> push_result(nn::ActivationStack& stack,
                                            tessera::vision::ConstImageView<T> x) const override {
    return block_.push_result(stack, x);
  }
  void forward(tessera::Window& window, nn::ActivationStack& stack, tessera::vision::ImageView<const T> x,
               tessera::vision::ImageView<T> y) override {
    saved_ = block_.forward(window, stack, x, y);
  }
  void backward(tessera::Window& window, nn::ActivationStack& stack, tessera::vision::ImageView<T> dy,
                tessera::vision::ImageView<T> dx) override {
    block_.backward(window, stack, saved_, dy, dx);
  }

 private:
  tessera::vision::ResidualBlock<T> block_;
  typename tessera::vision::ResidualBlock<T>::Saved saved_;
};

template <typename T>
class AverageHead final : public Head<T> {
 public:
  AverageHead(std::size_t in, std::size_t classes, float label_smoothing);

  void visit(tessera::ModuleVisitor& visitor) override { fc_.visit(visitor); }

 private:
  void compute(tessera::Window& window, nn::ActivationStack& stack, tessera::vision::ImageView<const T> x,
               nn::MatrixView<T> logits) override;
  void differentiate(tessera::Window& window, nn::ActivationStack& stack, nn::MatrixView<const T> dlogits,
                     tessera::vision::ImageView<T> dx) override;

  tessera::vision::GlobalAverage<T> average_;
  nn::Linear<T> fc_;
  typename nn::Linear<T>::Saved saved_fc_;
};

// Channels and strides of all blocks, in their order, with names "layer1.0" and so on: of a network with `blocks`
// blocks in its four layers.
struct NamedBlock {
  std::string name;
  tessera::vision::ResidualShape shape;
};
std::vector<NamedBlock> residual_blocks(std::size_t width, const std::vector<std::size_t>& blocks, bool bottleneck);

}  // namespace models
