// The inner loops over rows of images, once per instruction set, as nn/src/rows/row_table.hpp has those of the other
// layers: the same rules hold for the files that are compiled with a set's flags, and all sets give the same bits.
#pragma once

#include <cstddef>
#include <cstdint>

#include "nn/src/rows/row_table.hpp"
#include "vision/src/names_of_nn.hpp"

namespace tessera::vision {

// Two sums over rows for each channel: of x - mean and of its square; with dy, of dy and of dy · (x - mean) · inverse,
// dy counting as 0 where y is not above 0.
struct BatchNormSums {
  Format format;
  const void* x;                  // [rows, channels]
  const void* dy = nullptr;       // null: forward
  const void* y = nullptr;        // what a rectifier gave; null: there is none
  const void* mean;               // [channels], in the type of arithmetic; forward: any number near the mean
  const void* inverse = nullptr;  // [channels], likewise; null: 1
  double* sums = nullptr;         // [2, channels]
  std::size_t rows;
  std::size_t channels;
};

// to = (x - mean) · scale + shift + residual, rectified; with dy: (dy - shift - (x - mean) · slope) · scale, dy
// counting as 0 where y is not above 0.
struct BatchNormRows {
  Format format;
  const void* x;                   // [rows, channels]
  const void* residual = nullptr;  // forward; null: none
  bool relu = false;               // forward
  const void* dy = nullptr;        // null: forward
  const void* y = nullptr;         // as in BatchNormSums
  void* to;                        // may be x, residual or dy
  const void* mean;                // [channels] each, in the type of arithmetic
  const void* scale;
  const void* shift;
  const void* slope = nullptr;  // null: forward
  std::size_t rows;
  std::size_t channels;
};

// Windows of a line, each of which sees `count` pixels, `step` elements behind those of the window before: the largest
// of them for each channel, and its place, the first of equals, or of NaN.
struct MaxPoolWindows {
  Format format;
  const void* const* pixels;   // [count], of the first window, [channels] each
  const std::uint8_t* places;  // [count]
  std::size_t count;           // at least 1
  std::size_t step;
  std::size_t windows;
  void* to;             // [windows, channels]
  std::uint8_t* place;  // [windows, channels]
  std::size_t channels;
};

// Pixels of a line, `step` elements apart, each of which `count` windows see, a window behind those of the pixel
// before: the sum of these windows' dy, channel by channel, where their place is `here`.
struct MaxPoolGradients {
  Format format;
  const void* const* dy;              // [count], of the first pixel, [channels] each
  const std::uint8_t* const* places;  // likewise
  const std::uint8_t* here;           // [count]
  std::size_t count;
  std::size_t step;
  std::size_t pixels;
  void* to;  // the first pixel, [channels]
  std::size_t channels;
};

struct ImageRows {
  void (*max_pool)(const MaxPoolWindows&);
  void (*max_pool_gradients)(const MaxPoolGradients&);
  void (*batch_norm_sums)(const BatchNormSums&);
  void (*batch_norm_scale)(const BatchNormRows&);
};

const ImageRows& portable_image_rows();
const ImageRows& avx2_image_rows();
const ImageRows& avx512_image_rows();

// Those of the instruction set that kernels/instruction_set.hpp chose.
const ImageRows& active_image_rows();

}  // namespace tessera::vision
