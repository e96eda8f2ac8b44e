// Layer normalisation (Ba, Kiros & Hinton 2016): of each row, y = (x - mean) / sqrt(variance + 1e-5) · weight + bias,
// with the variance's sum divided by dim.
//
// The functions enqueue on the stream, capture everything by value, do not synchronise and allocate nothing. Sums over
// a row run in sixteen lanes, sums over rows in the order of the rows, in fp32 (fp64 for double); on a CUDA device in
// an order that depends on the shape alone. 0 rows are fine; a row has at least one element. They throw UsageError when
// shapes do not fit.
#pragma once

#include <cstddef>
#include <optional>
#include <span>

#include "tessera/device/stream.hpp"
#include "tessera/nn/activation_stack.hpp"
#include "tessera/nn/element.hpp"
#include "tessera/nn/layer.hpp"
#include "tessera/nn/slices.hpp"
#include "tessera/nn/view.hpp"
#include "tessera/shard/module.hpp"
#include "tessera/shard/parameter.hpp"

#pragma GCC visibility push(default)

namespace tessera::nn {

inline constexpr double layer_norm_epsilon = 1e-5;

template <Element T>
struct LayerNormForward {
  MatrixView<const T> x;             // [rows, dim]
  const T* weight = nullptr;         // [dim]
  const T* bias = nullptr;           // [dim]
  MatrixView<T> y;                   // [rows, dim]; may be x, when no backward pass follows
  Arithmetic<T>* mean = nullptr;     // [rows], written: what backward needs besides x
  Arithmetic<T>* inverse = nullptr;  // [rows], written: 1 / sqrt(variance + epsilon)
};
template <Element T>
void layer_norm_forward(Stream& stream, const LayerNormForward<T>& operation);

template <Element T>
struct LayerNormBackward {
  MatrixView<const T> x;                   // [rows, dim]
  const T* weight = nullptr;               // [dim]
  const Arithmetic<T>* mean = nullptr;     // [rows]
  const Arithmetic<T>* inverse = nullptr;  // [rows]
  MatrixView<const T> dy;                  // [rows, dim]
  const T* residual = nullptr;             // [rows, dim], added to dx: the gradient that went past this layer; or null
  MatrixView<T> dx;                        // [rows, dim]; may be dy, and may be residual
  T* dweight = nullptr;                    // [dim]; null: not wanted
  T* dbias = nullptr;                      // [dim]; null: not wanted
  bool accumulate = false;                 // adds to dweight and dbias instead of replacing them
  float* scratch = nullptr;                // layer_norm_scratch(rows, dim, device) floats
};
template <Element T>
void layer_norm_backward(Stream& stream, const LayerNormBackward<T>& operation);

// Floats that backward needs: none on the CPU.
std::size_t layer_norm_scratch(std::size_t rows, std::size_t dim, DeviceKind device = DeviceKind::cpu);

template <Element T>
class LayerNorm final : public Module {
 public:
  // weight starts as ones, bias as zeros. With slices each rank has some of the rows, and their gradients are summed
  // over all: the same bits on every rank.
  explicit LayerNorm(std::size_t dim, const Slices& slices = {});

  void visit(ModuleVisitor& visitor) override;  // "weight", "bias": [dim]

  struct Saved {
    MatrixView<const T> x;
    std::span<Arithmetic<T>> mean;     // [rows]
    std::span<Arithmetic<T>> inverse;  // [rows]
  };
  Saved forward(Window& window, ActivationStack& stack, MatrixView<const T> x, MatrixView<T> y);
  void backward(Window& window, ActivationStack& stack, const Saved& saved, MatrixView<const T> dy,
                MatrixView<T> dx);  // dx may be dy
  // Adds the gradient of x to dx: for a layer beside a residual path, whose gradient dx holds.
  void add_backward(Window& window, ActivationStack& stack, const Saved& saved, MatrixView<const T> dy,
                    MatrixView<T> dx);

  using Between = MatrixView<const T>;  // dy, which stays
  Between backward_input(Window& window, ActivationStack& stack, const Saved& saved, MatrixView<const T> dy,
                         MatrixView<T> dx);  // dx is not dy
  Between add_backward_input(Window& window, ActivationStack& stack, const Saved& saved, MatrixView<const T> dy,
                             MatrixView<T> dx);
  void backward_parameters(Window& window, ActivationStack& stack, const Saved& saved, const Between& dy);

 private:
  struct Gradients {
    MatrixView<const T> dy;
    const T* residual;
    MatrixView<T> dx;
    bool of_parameters = true;
  };
  void backward_with(Window& window, ActivationStack& stack, const Saved& saved, const Gradients& gradients);

  Parameter weight_;
  Parameter bias_;
  std::optional<Collective> sums_;  // of the gradients of both
};

}  // namespace tessera::nn

#pragma GCC visibility pop
