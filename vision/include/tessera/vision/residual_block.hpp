// The blocks of residual networks (He et al. 2016), as torchvision has them:
//   y = relu(branch(x) + shortcut(x))
// The branch of a basic block is two convolutions of 3 × 3, of which the first has the stride; that of a bottleneck is
// 1 × 1, 3 × 3 with the stride ("v1.5"), and 1 × 1 to four times as many channels. Each is followed by a batch norm,
// and all but the last by a relu. The shortcut is x itself, or, where its size or channels differ from y's, a
// convolution of 1 × 1 with a batch norm. Convolutions have no bias, and start as He et al. 2015 for their outputs; the
// last batch norm's weight starts as 0 where that is asked for.
#pragma once

#include <cstddef>
#include <optional>

#include "tessera/nn/activation_stack.hpp"
#include "tessera/nn/element.hpp"
#include "tessera/nn/layer.hpp"
#include "tessera/nn/relu.hpp"
#include "tessera/shard/module.hpp"
#include "tessera/vision/batch_norm.hpp"
#include "tessera/vision/convolution.hpp"
#include "tessera/vision/image_view.hpp"

#pragma GCC visibility push(default)

namespace tessera::vision {

// normal(0, √(2 / (out · kernel's pixels))): what such networks' convolutions start from.
Initial he_initial(const ConvolutionShape& shape);

// A convolution without bias, and the batch norm of its result.
template <nn::Element T>
class NormedConvolution final {
 public:
  explicit NormedConvolution(const ConvolutionShape& shape, const BatchNormOptions& norm = {});

  Convolution<T>& convolution() { return convolution_; }  // for visit()
  BatchNorm<T>& norm() { return norm_; }
  const ConvolutionShape& shape() const { return convolution_.shape(); }
  ImageView<T> push_result(nn::ActivationStack& stack, ConstImageView<T> x) const {
    return convolution_.push_result(stack, x);
  }

  struct Saved {
    typename Convolution<T>::Saved convolution;
    typename BatchNorm<T>::Saved norm;
  };
  Saved forward(tessera::Window& window, nn::ActivationStack& stack, ImageView<const T> x, ImageView<T> y,
                typename BatchNorm<T>::Then then = {});
  // relu_y as BatchNorm's. dx without channels: not wanted.
  void backward(tessera::Window& window, nn::ActivationStack& stack, const Saved& saved, ImageView<const T> dy,
                ImageView<T> dx, const T* relu_y = nullptr);

 private:
  Convolution<T> convolution_;
  BatchNorm<T> norm_;
};

struct ResidualShape {
  std::size_t in;     // channels
  std::size_t width;  // channels inside; of y as many, or with a bottleneck four times
  std::size_t stride = 1;
  bool bottleneck = false;
  bool starts_as_shortcut = false;  // the last batch norm's weight starts as 0
  bool synchronised = false;        // batch norms are, over all ranks
  bool granules = false;            // batch norms are of granules (BatchNormOptions)

  std::size_t out() const { return bottleneck ? 4 * width : width; }
};

template <nn::Element T>
class ResidualBlock final : public Module {
 public:
  explicit ResidualBlock(const ResidualShape& shape);

  // "downsample.0", "downsample.1" where there is a shortcut, which comes first; "conv1", "bn1", "conv2", "bn2", with a
  // bottleneck "conv3", "bn3"
  void visit(ModuleVisitor& visitor) override;

  const ResidualShape& shape() const { return shape_; }
  ImageView<T> push_result(nn::ActivationStack& stack, ConstImageView<T> x) const;

  struct Saved {
    typename NormedConvolution<T>::Saved first;
    typename NormedConvolution<T>::Saved second;
    typename NormedConvolution<T>::Saved third;
    typename NormedConvolution<T>::Saved shortcut;
    ImageView<T> first_result;  // behind their relus
    ImageView<T> second_result;
    ImageView<T> y;
  };
  Saved forward(tessera::Window& window, nn::ActivationStack& stack, ImageView<const T> x, ImageView<T> y);
  // The gradient of y is overwritten. dx without channels: not wanted.
  void backward(tessera::Window& window, nn::ActivationStack& stack, const Saved& saved, ImageView<T> dy,
                ImageView<T> dx);

 private:
  void branch_backward(tessera::Window& window, nn::ActivationStack& stack, const Saved& saved, ImageView<const T> dy,
                       ImageView<T> dx);

  ResidualShape shape_;
  NormedConvolution<T> first_;
  NormedConvolution<T> second_;
  std::optional<NormedConvolution<T>> third_;
  std::optional<NormedConvolution<T>> shortcut_;
  nn::Relu<T> relu_;
};

}  // namespace tessera::vision

#pragma GCC visibility pop
