// Pooling over the pixels of images, channel by channel, as PyTorch's MaxPool2d, AvgPool2d and adaptive average pooling
// to one pixel. Images are NHWC (image_view.hpp).
//
// The functions enqueue on the stream, capture everything by value, do not synchronise and allocate nothing. A gradient
// of several windows over one pixel is summed in the type of arithmetic, window after window, and rounded once. CUDA
// devices give the same bits, in fp32, bf16 and fp16.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "tessera/nn/activation_stack.hpp"
#include "tessera/nn/element.hpp"
#include "tessera/nn/layer.hpp"
#include "tessera/shard/module.hpp"
#include "tessera/vision/image_view.hpp"

#pragma GCC visibility push(default)

namespace tessera::vision {

struct PoolShape {
  HeightWidth kernel;
  HeightWidth stride = kernel;
  HeightWidth padding = 0;  // at each side; at most half of the kernel. Not seen by a maximum, 0 for an average

  // Throws UsageError for a kernel, stride or padding that cannot be, and for images that are smaller than the kernel.
  HeightWidth output(HeightWidth image) const;
};

// places: for each element of y which of the kernel's pixels was the largest, the first of equals, counted row by row;
// so the kernel has 256 pixels at most. A NaN is larger than everything.
template <nn::Element T>
void max_pool_forward(Stream& stream, const PoolShape& shape, ConstImageView<T> x, ImageView<T> y,
                      std::uint8_t* places);
template <nn::Element T>
void max_pool_backward(Stream& stream, const PoolShape& shape, ConstImageView<T> dy, const std::uint8_t* places,
                       ImageView<T> dx);

// The mean over the kernel's pixels, those of the padding among them.
template <nn::Element T>
void average_pool_forward(Stream& stream, const PoolShape& shape, ConstImageView<T> x, ImageView<T> y);
template <nn::Element T>
void average_pool_backward(Stream& stream, const PoolShape& shape, ConstImageView<T> dy, ImageView<T> dx);

// The mean over all pixels of an image: y [images, channels], summed in the type of arithmetic from the first to the
// last pixel.
template <nn::Element T>
void global_average_forward(Stream& stream, ConstImageView<T> x, nn::MatrixView<T> y);
template <nn::Element T>
void global_average_backward(Stream& stream, nn::ConstMatrixView<T> dy, ImageView<T> dx);

template <nn::Element T>
class MaxPool final : public Module {
 public:
  explicit MaxPool(const PoolShape& shape) : shape_(shape) {}

  void visit(ModuleVisitor&) override {}

  // A view of what forward() makes of x, for the stack's push.
  ImageView<T> push_result(nn::ActivationStack& stack, ConstImageView<T> x) const;

  struct Saved {
    std::span<std::uint8_t> places;
  };
  Saved forward(tessera::Window& window, nn::ActivationStack& stack, ImageView<const T> x, ImageView<T> y);
  void backward(tessera::Window& window, nn::ActivationStack& stack, const Saved& saved, ImageView<const T> dy,
                ImageView<T> dx);

 private:
  PoolShape shape_;
};

template <nn::Element T>
class AveragePool final : public Module {
 public:
  explicit AveragePool(const PoolShape& shape) : shape_(shape) {}

  void visit(ModuleVisitor&) override {}

  ImageView<T> push_result(nn::ActivationStack& stack, ConstImageView<T> x) const;

  struct Saved {};
  Saved forward(tessera::Window& window, nn::ActivationStack& stack, ImageView<const T> x, ImageView<T> y);
  void backward(tessera::Window& window, nn::ActivationStack& stack, const Saved& saved, ImageView<const T> dy,
                ImageView<T> dx);

 private:
  PoolShape shape_;
};

template <nn::Element T>
class GlobalAverage final : public Module {
 public:
  void visit(ModuleVisitor&) override {}

  struct Saved {};
  Saved forward(tessera::Window& window, nn::ActivationStack& stack, ImageView<const T> x, nn::MatrixView<T> y);
  void backward(tessera::Window& window, nn::ActivationStack& stack, const Saved& saved, nn::MatrixView<const T> dy,
                ImageView<T> dx);
};

}  // namespace tessera::vision

#pragma GCC visibility pop
