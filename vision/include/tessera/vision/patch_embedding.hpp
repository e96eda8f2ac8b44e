// How a vision transformer reads images (Dosovitskiy et al. 2021): each image is cut into patches, each patch becomes a
// token by one linear map (a convolution whose stride is its kernel), a class token stands before them, and each place
// has numbers of its own, which are added:
//   y[n, 0] = class + position[0];   y[n, 1 + p] = proj(patch p of image n) + position[1 + p]
// Patches follow each other line by line. take_class_tokens() is the other end: the rows that a head looks at.
//
// The functions enqueue on the stream, capture everything by value, do not synchronise and allocate nothing. Sums over
// images run in fp32 (fp64 for double), from the first to the last. CUDA devices: in fp32, bf16 and fp16.
#pragma once

#include <cstddef>

#include "tessera/nn/activation_stack.hpp"
#include "tessera/nn/element.hpp"
#include "tessera/nn/layer.hpp"
#include "tessera/nn/view.hpp"
#include "tessera/shard/module.hpp"
#include "tessera/vision/convolution.hpp"
#include "tessera/vision/image_view.hpp"

#pragma GCC visibility push(default)

namespace tessera::vision {

struct PatchShape {
  std::size_t channels;  // of the images
  HeightWidth image;     // that all have
  HeightWidth patch;     // divides image
  std::size_t dim;       // of tokens

  std::size_t patches() const { return (image.height / patch.height) * (image.width / patch.width); }
  std::size_t tokens() const { return 1 + patches(); }
};

template <nn::Element T>
class PatchEmbedding final : public Module {
 public:
  // The projection starts as a convolution does, class token and positions as normal(0, 0.02). Throws UsageError where
  // patches do not divide the image.
  explicit PatchEmbedding(const PatchShape& shape);

  // "proj.weight" [dim, channels, patch], "proj.bias", "cls_token" [dim], "pos_embed" [tokens, dim]
  void visit(ModuleVisitor& visitor) override;

  const PatchShape& shape() const { return shape_; }

  struct Saved {
    typename Convolution<T>::Saved proj;
    std::size_t images;
  };
  Saved forward(tessera::Window& window, nn::ActivationStack& stack, ImageView<const T> x,
                nn::MatrixView<T> y);  // [images · tokens, dim]
  // dx without channels: not wanted.
  void backward(tessera::Window& window, nn::ActivationStack& stack, const Saved& saved, nn::MatrixView<const T> dy,
                ImageView<T> dx);

 private:
  PatchShape shape_;
  Convolution<T> proj_;
  Parameter cls_token_;
  Parameter pos_embed_;
};

// Row 0 of each sequence of `tokens` rows: to [x.rows / tokens, dim].
template <nn::Element T>
void take_class_tokens(Stream& stream, std::size_t tokens, nn::ConstMatrixView<T> x, nn::MatrixView<T> to);
// Its gradient: dx's other rows become 0.
template <nn::Element T>
void give_class_tokens(Stream& stream, std::size_t tokens, nn::ConstMatrixView<T> dto, nn::MatrixView<T> dx);

}  // namespace tessera::vision

#pragma GCC visibility pop
