// A convolution of one batch in plain numbers, small enough for a stream's task, and what both ways to compute it are
// handed. How they are meant: convolution.hpp.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tessera/nn/element.hpp"
#include "vision/src/names_of_nn.hpp"

namespace tessera::vision {

struct Pair32 {
  std::uint32_t height;
  std::uint32_t width;
  auto operator<=>(const Pair32&) const = default;
};

struct ConvolutionGeometry {
  std::uint32_t images;
  Pair32 image;
  Pair32 result;
  std::uint32_t in;
  std::uint32_t out;
  Pair32 kernel;
  Pair32 stride;
  Pair32 padding;
  Pair32 dilation;
  std::uint32_t groups;

  std::size_t group_in() const { return in / groups; }
  std::size_t group_out() const { return out / groups; }
  std::size_t depth() const { return group_in() * kernel.height * kernel.width; }  // of each output's sum
  std::size_t weights() const { return out * depth(); }
  std::size_t x_of_image() const { return std::size_t{image.height} * image.width * in; }  // elements
  std::size_t y_of_image() const { return std::size_t{result.height} * result.width * out; }

  // Whether the kernel sees one pixel at each place of the result, so that the image is the matrix of what it sees.
  bool sees_the_image() const {
    constexpr Pair32 one{1, 1};
    return kernel == one && stride == one && padding == Pair32{0, 0};
  }

  auto operator<=>(const ConvolutionGeometry&) const = default;
};

template <Element T>
struct ConvolutionForwardWork {
  ConvolutionGeometry of;
  const T* x;
  const T* weight;
  const T* bias;  // null: none
  T* y;
  float* scratch;
};

template <Element T>
struct ConvolutionBackwardWork {
  ConvolutionGeometry of;
  const T* x;
  const T* weight;
  const T* dy;
  T* dx;       // null: not wanted
  T* dweight;  // null: not wanted
  T* dbias;    // null: not wanted
  bool accumulate;
  float* scratch;
};

}  // namespace tessera::vision
