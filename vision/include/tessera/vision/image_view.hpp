// Views of batches of images: what the layers of vision pass to each other. They own nothing.
#pragma once

#include <cstddef>
#include <type_traits>

#include "tessera/nn/view.hpp"

#pragma GCC visibility push(default)

namespace tessera::vision {

struct HeightWidth {
  constexpr HeightWidth(std::size_t both) : height(both), width(both) {}  // NOLINT(google-explicit-constructor)
  constexpr HeightWidth(std::size_t height_, std::size_t width_) : height(height_), width(width_) {}

  std::size_t height;
  std::size_t width;
  friend bool operator==(const HeightWidth&, const HeightWidth&) = default;
};

// images × height × width × channels elements, the channels of a pixel side by side (NHWC, "channels last"), without
// gaps, in the memory of the stream's device. So the pixels are the rows of a matrix: what works on rows (linear
// layers, activations, batch norm over channels) works on images as it is. T as in MatrixView.
template <typename T>
struct ImageView {
  T* data = nullptr;
  std::size_t images = 0;
  std::size_t height = 0;
  std::size_t width = 0;
  std::size_t channels = 0;

  HeightWidth size() const { return {height, width}; }
  std::size_t pixels() const { return images * height * width; }
  std::size_t elements() const { return pixels() * channels; }
  nn::MatrixView<T> rows() const { return {data, pixels(), channels}; }                 // one for each pixel
  nn::MatrixView<T> flat() const { return {data, images, height * width * channels}; }  // one for each image

  // A view of T becomes one of const T, like a span.
  operator ImageView<const T>() const  // NOLINT(google-explicit-constructor)
      requires(!std::is_const_v<T>) {
    return {data, images, height, width, channels};
  }
};

// So that templates find T, as in ConstMatrixView.
template <typename T>
using ConstImageView = ImageView<const std::type_identity_t<T>>;

}  // namespace tessera::vision

#pragma GCC visibility pop
