// Batch normalisation (Ioffe & Szegedy 2015) over rows, for each channel: y = (x - mean) / sqrt(variance + epsilon) ·
// weight + bias, and with the parts of a network that follow it in one pass: y = relu(that + residual). The pixels of
// images are such rows (ImageView::rows). Training takes mean and variance (biased) of the rows at hand, and moves the
// running ones: running += momentum · (of the rows - running), the variance then being the unbiased one, as in PyTorch.
// Evaluation takes the running ones.
//
// Synchronised, the rows at hand are those of all ranks together (PyTorch's SyncBatchNorm): each brings its number of
// rows, its means and its sums of squared deviations, which are put together in the order of ranks (Chan et al. 1983),
// and in backward its two sums. A rank may have more rows than others, or none. With one rank the bits are those of the
// norm that is not synchronised.
//
// With granules (FullyShardOptions::granules) each rank normalises by the rows at hand, which are a granule's, but the
// running moments move by every granule, also other ranks': by one after the other in their order, so that they are the
// same bits on every rank and on any number of ranks. A granule without rows moves nothing.
//
// The functions enqueue on the stream, capture everything by value, do not synchronise and allocate nothing. Sums over
// rows are formed in parts whose borders depend on the extents alone, runs of 64 rows in the type of arithmetic and
// what they come to in fp64: any number of threads and any instruction set gives the same bits. Moments are exact
// without rows: mean 0, variance 0. On CUDA devices parts are other ones, the same each time.
#pragma once

#include <cstddef>
#include <optional>
#include <span>

#include "tessera/device/device.hpp"
#include "tessera/nn/activation_stack.hpp"
#include "tessera/nn/element.hpp"
#include "tessera/nn/layer.hpp"
#include "tessera/nn/view.hpp"
#include "tessera/shard/buffer.hpp"
#include "tessera/shard/collective.hpp"
#include "tessera/shard/module.hpp"
#include "tessera/shard/parameter.hpp"

#pragma GCC visibility push(default)

namespace tessera::vision {

struct BatchNormOptions {
  double epsilon = 1e-5;
  double momentum = 0.1;
  bool synchronised = false;                 // over all ranks; where replicas train by themselves, over the replica's
  bool granules = false;                     // rows at hand are a granule; not with `synchronised`
  Initial initial_weight = Initial::ones();  // zeros: a residual branch that starts as nothing (Goyal et al. 2017)
};

// A rank brings so many values to the others: its number of rows, and then two values for each channel.
inline std::size_t batch_norm_values(std::size_t channels) { return 1 + 2 * channels; }

template <nn::Element T>
struct BatchNormMoments {
  nn::MatrixView<const T> x;  // [rows, channels]
  double* moments = nullptr;  // written: rows, means, sums of squared deviations
  float* scratch = nullptr;   // batch_norm_scratch<T>(rows, channels, device) floats
};
template <nn::Element T>
void batch_norm_moments(Stream& stream, const BatchNormMoments<T>& operation);

template <nn::Element T>
struct BatchNormForward {
  nn::MatrixView<const T> x;    // [rows, channels]
  const T* weight = nullptr;    // [channels]
  const T* bias = nullptr;      // [channels]
  nn::MatrixView<T> y;          // [rows, channels]; may be x, when no backward follows, and may be residual
  const T* residual = nullptr;  // [rows, channels]; null: none
  bool relu = false;
  // [channels]: written, of the rows at hand: what backward needs. With `evaluate` they are scratch memory.
  nn::Arithmetic<T>* mean = nullptr;
  nn::Arithmetic<T>* inverse = nullptr;  // 1 / sqrt(variance + epsilon)
  float* running_mean = nullptr;         // [channels]; null: none
  float* running_variance = nullptr;
  bool evaluate = false;  // with the running mean and variance, which then must be there
  bool update = true;     // of the running ones; false: a pass that is done again
  double epsilon = 1e-5;
  double momentum = 0.1;
  Contributions moments{};   // of all ranks; none: of the rows at hand
  float* scratch = nullptr;  // batch_norm_scratch<T>(rows, channels, device) floats
};
template <nn::Element T>
void batch_norm_forward(Stream& stream, const BatchNormForward<T>& operation);  // UsageError when shapes do not fit

// Moves the running moments alone: what a rank does that skips a pass, and with granules every rank. The same on every
// rank.
struct BatchNormFollow {
  std::size_t channels = 0;
  float* running_mean = nullptr;
  float* running_variance = nullptr;
  double momentum = 0.1;
  Contributions moments{};
  bool granules = false;  // moments are granules', by which they move one after the other in the order of places
};
void batch_norm_follow(Stream& stream, const BatchNormFollow& operation);

// This is the part of a synchronised norm's backward that stands before the exchange.
template <nn::Element T>
struct BatchNormGradientSums {
  nn::MatrixView<const T> x;  // as BatchNormBackward's
  const nn::Arithmetic<T>* mean = nullptr;
  const nn::Arithmetic<T>* inverse = nullptr;
  nn::MatrixView<const T> dy;
  const T* relu_y = nullptr;
  double* sums = nullptr;    // written: rows, sums of dy, sums of dy · (x - mean) · inverse
  float* scratch = nullptr;  // as for forward
};
template <nn::Element T>
void batch_norm_gradient_sums(Stream& stream, const BatchNormGradientSums<T>& operation);

template <nn::Element T>
struct BatchNormBackward {
  nn::MatrixView<const T> x;  // [rows, channels], as forward got it
  const T* weight = nullptr;
  const nn::Arithmetic<T>* mean = nullptr;
  const nn::Arithmetic<T>* inverse = nullptr;
  nn::MatrixView<const T> dy;
  const T* relu_y =
      nullptr;              // [rows, channels]: forward's y, when that was rectified without residual; null: it was not
  nn::MatrixView<T> dx;     // may be dy; without columns: not wanted
  T* dweight = nullptr;     // [channels]; null: not wanted
  T* dbias = nullptr;       // [channels]; null: not wanted
  bool accumulate = false;  // adds to dweight and dbias instead of replacing them
  // Synchronised: what all ranks brought, and this rank's, of which dweight and dbias are; none: of the rows at hand.
  Contributions sums{};
  const double* own_sums = nullptr;
  float* scratch = nullptr;  // as for forward
};
template <nn::Element T>
void batch_norm_backward(Stream& stream, const BatchNormBackward<T>& operation);

// Floats that either direction needs.
template <nn::Element T>
std::size_t batch_norm_scratch(std::size_t rows, std::size_t channels, DeviceKind device = DeviceKind::cpu);

template <nn::Element T>
class BatchNorm final : public Module {
 public:
  // Bias and running mean start as 0. Throws UsageError where it is to be synchronised and of granules.
  explicit BatchNorm(std::size_t channels, const BatchNormOptions& options = {});

  // "weight", "bias"; buffers "running_mean", "running_var": [channels], which start as zeros and ones; synchronised
  // or of granules the exchange "statistics"
  void visit(ModuleVisitor& visitor) override;

  struct Saved {
    nn::MatrixView<const T> x;
    std::span<nn::Arithmetic<T>> mean;     // [channels]
    std::span<nn::Arithmetic<T>> inverse;  // [channels]
  };
  // The window's kind decides: evaluate takes the running moments, recompute leaves them as they are. Throws UsageError
  // in a model with granules where the norm is not of them.
  struct Then {  // y = relu(norm + residual)
    const T* residual = nullptr;
    bool relu = false;
  };
  Saved forward(tessera::Window& window, nn::ActivationStack& stack, nn::MatrixView<const T> x, nn::MatrixView<T> y,
                Then then = {});
  // Computes the gradient of x from that of norm + residual; with relu_y from that of y, when there was no residual.
  void backward(tessera::Window& window, nn::ActivationStack& stack, const Saved& saved, nn::MatrixView<const T> dy,
                nn::MatrixView<T> dx, const T* relu_y = nullptr);  // dx may be dy

 private:
  void require_granules(const tessera::Window& window) const;
  // Moves the running moments by what others brought.
  void follow(tessera::Window& window, const Contributions& moments);

  BatchNormOptions options_;
  Parameter weight_;
  Parameter bias_;
  Buffer running_mean_;
  Buffer running_variance_;
  std::optional<Collective> statistics_;  // synchronised, or of granules
};

}  // namespace tessera::vision

#pragma GCC visibility pop
