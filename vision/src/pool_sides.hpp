// Which pixels a pooling window sees and which windows see a pixel: for the loops of the CPU and for CUDA's kernels.
#pragma once

#include <cstddef>

#include "tessera/vision/image_view.hpp"
#include "vision/src/names_of_nn.hpp"

#if defined(__CUDACC__)
#define TESSERA_POOLING_ANY_DEVICE __host__ __device__
#else
#define TESSERA_POOLING_ANY_DEVICE
#endif

namespace tessera::vision {

struct PoolShape;

struct PoolRange {
  std::size_t begin;
  std::size_t end;
};

// Along one side: the pixels of x that a window sees, and the windows that see a pixel of x.
struct PoolSide {
  std::size_t kernel;
  std::size_t stride;
  std::size_t padding;
  std::size_t image;
  std::size_t result;

  TESSERA_POOLING_ANY_DEVICE PoolRange seen_by(std::size_t window) const {
    const std::size_t begin = window * stride;  // in the padded image
    const std::size_t end = begin + kernel < image + padding ? begin + kernel : image + padding;
    return {(begin > padding ? begin : padding) - padding, end - padding};
  }
  TESSERA_POOLING_ANY_DEVICE PoolRange that_see(std::size_t pixel) const {
    const std::size_t at = pixel + padding;
    const std::size_t begin = at < kernel ? 0 : (at - kernel) / stride + 1;
    return {begin, at / stride + 1 < result ? at / stride + 1 : result};
  }
  TESSERA_POOLING_ANY_DEVICE std::size_t place(std::size_t window, std::size_t pixel) const {
    return pixel + padding - window * stride;
  }

  // How many windows from this one on see the same places of their kernels, each `stride` pixels behind the one before:
  // all places, or one window alone.
  std::size_t alike_from_window(std::size_t window) const {
    const std::size_t whole = image + padding;  // pixels that windows without a place beyond the image end before
    if (window * stride < padding || window * stride + kernel > whole) return 1;
    return (whole - kernel) / stride - window + 1;
  }
  // How many pixels from this one on, `stride` apart, are seen by as many windows, each a window behind the pixel
  // before.
  std::size_t alike_from_pixel(std::size_t pixel) const {
    if (pixel + padding + stride < kernel) return 1;
    const std::size_t until_last_window = result - that_see(pixel).end + 1;
    const std::size_t until_last_pixel = (image - pixel - 1) / stride + 1;
    return until_last_window < until_last_pixel ? until_last_window : until_last_pixel;
  }
};

struct PoolSides {
  PoolSides(const PoolShape& shape, HeightWidth image, HeightWidth result);  // in pooling.cpp
  PoolSide y;
  PoolSide x;
};

}  // namespace tessera::vision
