// Two-dimensional convolution, as PyTorch's Conv2d (a cross-correlation; the kernel is not flipped):
//   y[n, oy, ox, o] = bias[o] + Σ weight[o, c, i, j] · x[n, oy · stride + i · dilation - padding, …, c]
// over the kernel's places i, j and the input channels c of o's group; outside of the image x is 0. Images are NHWC
// (image_view.hpp), weights [out, in / groups, height, width] as in PyTorch's files.
//
// On the CPU by oneDNN, where the build found it and it has a kernel for this processor, else as matrix products of the
// pixels under each place of the kernel (TESSERA_CONVOLUTIONS chooses, "products" or "onednn"). 16-bit elements are
// summed in fp32. Products give the same bits for any number of threads (threads.hpp) where products are tessera's own;
// oneDNN's sums over a batch are formed per thread, so its bits depend on the number.
//
// On CUDA devices by cuDNN, where it can be opened and has a kernel with the same bits each time, else as products,
// too, by cuBLASLt, some images of the batch at a time (TESSERA_CUDA_CONVOLUTIONS chooses, "products" or "cudnn"); in
// fp32, bf16 and fp16. cuDNN rounds results before the bias is added. What of an image the kernel sees has fewer than
// 2^31 elements there.
//
// The functions enqueue on the stream, capture everything by value and do not synchronise; with products they allocate
// nothing, oneDNN takes some hundred bytes of the host's heap at each call. A batch of no images is fine.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "tessera/device/device.hpp"
#include "tessera/nn/activation_stack.hpp"
#include "tessera/nn/element.hpp"
#include "tessera/nn/layer.hpp"
#include "tessera/shard/module.hpp"
#include "tessera/shard/parameter.hpp"
#include "tessera/vision/image_view.hpp"

#pragma GCC visibility push(default)

namespace tessera::vision {

struct ConvolutionShape {
  std::size_t in;   // channels
  std::size_t out;  // channels
  HeightWidth kernel;
  HeightWidth stride = 1;
  HeightWidth padding = 0;   // pixels of 0 at each side
  HeightWidth dilation = 1;  // from one of the kernel's pixels to the next
  std::size_t groups = 1;    // divides in and out; output channels of a group see the input channels of theirs

  // Returns the size of the results from images of this size. Throws UsageError, with the sizes, where the kernel
  // reaches beyond the padded image.
  HeightWidth output(HeightWidth image) const;
  // Throws UsageError for what is no convolution: nothing, or groups that do not divide.
  void check() const;

  friend bool operator==(const ConvolutionShape&, const ConvolutionShape&) = default;
};

template <nn::Element T>
struct ConvolutionForward {
  ConvolutionShape shape;
  ImageView<const T> x;
  const T* weight = nullptr;  // [out, in / groups, kernel.height, kernel.width]
  const T* bias = nullptr;    // [out]; null: none
  ImageView<T> y;             // overlaps nothing
  // convolution_scratch<T>(shape, images, x's size, device) floats, which begin on 64 bytes, on CUDA devices on 256
  float* scratch = nullptr;
};
template <nn::Element T>
void convolution_forward(Stream& stream, const ConvolutionForward<T>& operation);  // UsageError when shapes do not fit

template <nn::Element T>
struct ConvolutionBackward {
  ConvolutionShape shape;
  ImageView<const T> x;
  const T* weight = nullptr;
  ImageView<const T> dy;
  ImageView<T> dx;           // without channels: not wanted
  T* dweight = nullptr;      // null: not wanted
  T* dbias = nullptr;        // null: not wanted
  bool accumulate = false;   // adds to dweight and dbias instead of replacing them
  float* scratch = nullptr;  // as for forward
};
template <nn::Element T>
void convolution_backward(Stream& stream, const ConvolutionBackward<T>& operation);

// Floats that either direction needs for such a batch; helpers of several threads take memory of their own.
template <nn::Element T>
std::size_t convolution_scratch(const ConvolutionShape& shape, std::size_t images, HeightWidth image,
                                DeviceKind device = DeviceKind::cpu);

// Says what computes them on such devices: "as products", or "by oneDNN 3.1.0", "by cuDNN 9.19.0". Throws UsageError
// where the variable that chooses names what this build or machine does not have.
std::string convolutions_in_words(DeviceKind device);

struct ConvolutionOptions {
  bool bias = true;
  std::optional<Initial> initial_weight = std::nullopt;  // default: Initial::fan_in(in / groups · kernel's pixels)
  std::optional<Initial> initial_bias = std::nullopt;    // default: likewise
};

template <nn::Element T>
class Convolution final : public Module {
 public:
  explicit Convolution(const ConvolutionShape& shape, const ConvolutionOptions& options = {});

  void visit(ModuleVisitor& visitor) override;  // "weight", "bias"

  const ConvolutionShape& shape() const { return shape_; }
  // A view of what forward() makes of x, for the stack's push.
  ImageView<T> push_result(nn::ActivationStack& stack, ConstImageView<T> x) const;

  struct Saved {
    ImageView<const T> x;
  };
  Saved forward(tessera::Window& window, nn::ActivationStack& stack, ImageView<const T> x, ImageView<T> y);
  // dx without channels: not wanted.
  void backward(tessera::Window& window, nn::ActivationStack& stack, const Saved& saved, ImageView<const T> dy,
                ImageView<T> dx);

 private:
  ConvolutionShape shape_;
  Parameter weight_;
  std::optional<Parameter> bias_;
};

}  // namespace tessera::vision

#pragma GCC visibility pop
