// The layers of vision on CUDA devices, as nn/src/cuda/cuda_layers.hpp has the others. Images are NHWC.
#pragma once

#include <cstddef>
#include <cstdint>

#include "nn/src/cuda/cuda_layers.hpp"
#include "tessera/shard/collective.hpp"
#include "vision/src/convolution/geometry.hpp"
#include "vision/src/pool_sides.hpp"
#include "vision/src/rows/image_rows.hpp"

namespace tessera::vision::cuda {

// ---- convolutions by a library (convolution_choice.hpp), or as products of what the kernel sees, some images of the
// batch at a time ----

struct ConvolutionTask {
  Format format;
  bool tf32;
  std::uint32_t images_at_once;  // above 0
  ConvolutionGeometry of;
};
// So many that the matrix of what the kernel sees has about 2^24 elements.
std::uint32_t images_at_once(const ConvolutionGeometry& of);

// These are ConvolutionForward<T> and ConvolutionBackward<T> without their types. scratch:
// convolution_scratch_bytes(format, of, images_at_once), which begins on 256.
struct ConvolutionForwardRows {
  ConvolutionTask task;
  const void* x;
  const void* weight;
  const void* bias;  // null: none
  void* y;
  void* scratch;
};
void convolution_forward(void* native, const ConvolutionForwardRows& a);

struct ConvolutionBackwardRows {
  ConvolutionTask task;
  const void* x;
  const void* weight;
  const void* dy;
  void* dx;       // null: not wanted
  void* dweight;  // null: not wanted
  void* dbias;    // null: not wanted
  bool accumulate;
  void* scratch;
};
void convolution_backward(void* native, const ConvolutionBackwardRows& a);
std::size_t convolution_scratch_bytes(Format format, const ConvolutionGeometry& of, std::uint32_t images_at_once);

// Products leave this to kernels of our own. Weights stand as [out, in / groups, kernel's places] where the user has
// them, and as [out, places, in / groups] for products, so that the channels of a pixel stay side by side.
struct WeightOrder {
  std::size_t out;
  std::size_t channels;  // in / groups
  std::size_t places;
};
void turn_weights(void* native, Format format, const WeightOrder& of, const void* weight, void* turned);
// Sums, in fp32 or in the gradient's format, become a gradient in the user's order.
struct TurnedGradient {
  Format format;
  Format sums_format;
  WeightOrder of;
  const void* sums;
  void* dweight;
  bool accumulate;
};
void turn_back(void* native, const TurnedGradient& a);

// `row` is added to each row of y, as spread_row() has them.
void add_to_rows(void* native, const SpreadRow& a);

// Some images of a convolution, and one group of their channels.
struct ConvolutionPart {
  Format format;
  ConvolutionGeometry of;  // of all images
  std::uint32_t first_image;
  std::uint32_t images;
  std::uint32_t group;
};
// [pixels, depth] in the type of x; outside of the image 0.
void see_pixels(void* native, const ConvolutionPart& part, const void* x, void* seen);
// dx = the sums of what the kernel saw of each pixel; in the order of the results' pixels, as on the CPU.
void give_pixels_back(void* native, const ConvolutionPart& part, const float* dseen, void* dx);

// ---- pooling: the CPU's bits ----

struct PooledImages {
  Format format;
  PoolSides sides;
  std::size_t images;
  std::size_t channels;
};
void max_pool(void* native, const PooledImages& of, const void* x, void* y, std::uint8_t* places);
void max_pool_gradient(void* native, const PooledImages& of, const void* dy, const std::uint8_t* places, void* dx);
void average_pool(void* native, const PooledImages& of, const void* x, void* y);
void average_pool_gradient(void* native, const PooledImages& of, const void* dy, void* dx);

// ---- batch norm ----

// The sums of a channel over rows: of x - shift and of its square, shift being the first row's; or, with dy, of dy and
// of dy · (x - mean) · inverse. In parts of rows, and then over the parts in their order.
struct BatchNormSumRows {
  Format format;
  const void* x;                   // [rows, channels]
  const void* dy = nullptr;        // null: moments
  const void* relu_y = nullptr;    // dy counts where it is above 0; null: everywhere
  const float* mean = nullptr;     // with dy
  const float* inverse = nullptr;  // with dy
  double* to;  // rows, and then what this rank brings: means and squared deviations, or the two sums
  std::size_t rows;
  std::size_t channels;
  double* scratch;  // as BatchNormForwardRows
};
void batch_norm_sums(void* native, const BatchNormSumRows& a);

struct BatchNormForwardRows {
  Format format;
  bool relu;
  bool evaluate;
  bool update;
  const void* x;
  const void* weight;
  const void* bias;
  const void* residual;
  void* y;
  float* mean;
  float* inverse;
  float* running_mean;
  float* running_variance;
  double epsilon;
  double momentum;
  Contributions moments;  // none: of the rows at hand
  std::size_t rows;
  std::size_t channels;
  double* scratch;  // batch_norm_scratch_doubles(rows, channels)
};
void batch_norm_forward(void* native, const BatchNormForwardRows& a);

struct BatchNormFollowRows {
  float* running_mean;
  float* running_variance;
  double momentum;
  Contributions moments;
  std::size_t channels;
  bool granules;  // by one contribution after the other
};
void batch_norm_follow(void* native, const BatchNormFollowRows& a);

struct BatchNormBackwardRows {
  Format format;
  bool accumulate;
  const void* x;
  const void* weight;
  const float* mean;
  const float* inverse;
  const void* dy;
  const void* relu_y;
  void* dx;
  void* dweight;
  void* dbias;
  Contributions sums;  // none: of the rows at hand
  const double* own_sums;
  std::size_t rows;
  std::size_t channels;
  double* scratch;  // as forward's
};
void batch_norm_backward(void* native, const BatchNormBackwardRows& a);
std::size_t batch_norm_scratch_doubles(std::size_t rows, std::size_t channels);

// ---- tokens of vision transformers ----

// y[image, 0] = cls_token + positions[0]; y[image, 1 + p] = patches[image, p] + positions[1 + p]
struct TokenRows {
  Format format;
  std::size_t images;
  std::size_t tokens;
  std::size_t dim;
  const void* patches;
  const void* cls_token;
  const void* positions;
  void* y;
};
void place_tokens(void* native, const TokenRows& a);

struct TokenGradientRows {
  Format format;
  std::size_t images;
  std::size_t tokens;
  std::size_t dim;
  const void* dy;
  void* dpatches;
  void* dcls;       // null: not wanted
  void* dposition;  // null: not wanted
};
void token_gradients(void* native, const TokenGradientRows& a);

// The first of each sequence's rows, or with `give` the other way: then all others become 0.
struct ClassTokenRows {
  Format format;
  bool give;
  std::size_t sequences;
  std::size_t tokens;
  std::size_t dim;
  const void* from;
  void* to;
};
void class_tokens(void* native, const ClassTokenRows& a);

}  // namespace tessera::vision::cuda
