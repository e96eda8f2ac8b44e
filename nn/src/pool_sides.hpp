// Which pixels a pooling window sees and which windows see a pixel: for the loops of the CPU and for CUDA's kernels.
#pragma once

#include <cstddef>

#include "tessera/nn/image_view.hpp"

#if defined(__CUDACC__)
#define TESSERA_POOLING_ANY_DEVICE __host__ __device__
#else
#define TESSERA_POOLING_ANY_DEVICE
#endif

namespace tessera::nn {

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
};

struct PoolSides {
  PoolSides(const PoolShape& shape, HeightWidth image, HeightWidth result);  // in pooling.cpp
  PoolSide y;
  PoolSide x;
};

}  // namespace tessera::nn
