// A linear layer: y = x Wᵀ + b, with x [batch, in], W [out, in], b [out], y [batch, out].
// The functions enqueue on the stream, capture everything by value, do not synchronise and allocate nothing; a batch of
// 0 rows is fine. Sums over the batch are formed in the order of the rows (bias) and by the BLAS (weights).
#pragma once

#include <cstddef>
#include <optional>

#include "tessera/nn/activation_stack.hpp"
#include "tessera/nn/element.hpp"
#include "tessera/nn/layer_window.hpp"
#include "tessera/nn/view.hpp"
#include "tessera/shard/module.hpp"
#include "tessera/shard/parameter.hpp"

namespace tessera::nn {

template <Element T>
struct LinearForward {
  MatrixView<const T> x;       // [batch, in]
  MatrixView<const T> weight;  // [out, in]
  const T* bias = nullptr;     // [out]; null: none
  MatrixView<T> y;             // [batch, out]; overlaps nothing
  float* scratch = nullptr;    // linear_scratch<T>(batch, in, out) floats
};
template <Element T>
void linear_forward(Stream& stream, const LinearForward<T>& operation);  // throws UsageError when shapes do not fit

template <Element T>
struct LinearBackward {
  MatrixView<const T> x;       // [batch, in]
  MatrixView<const T> weight;  // [out, in]
  MatrixView<const T> dy;      // [batch, out]
  MatrixView<T> dx;            // [batch, in] = dy W; without columns: not wanted
  T* dweight = nullptr;        // [out, in] = dyᵀ x; null: not wanted
  T* dbias = nullptr;          // [out] = sum of dy over the batch; null: not wanted
  bool accumulate = false;     // adds to dweight and dbias instead of replacing them
  float* scratch = nullptr;    // linear_scratch<T>(batch, in, out) floats
};
template <Element T>
void linear_backward(Stream& stream, const LinearBackward<T>& operation);  // throws UsageError when shapes do not fit

// Floats that either direction needs: none for float and double.
template <Element T>
std::size_t linear_scratch(std::size_t batch, std::size_t in, std::size_t out);

struct LinearOptions {
  bool bias = true;
  std::optional<Initial> initial_weight = std::nullopt;  // default: Initial::fan_in(in), and the bias likewise
  std::optional<Initial> initial_bias = std::nullopt;
};

template <Element T>
class Linear final : public Module {
 public:
  Linear(std::size_t in, std::size_t out, const LinearOptions& options = {});

  void visit(ModuleVisitor& visitor) override;  // "weight", "bias"

  struct Saved {
    MatrixView<const T> x;
  };
  Saved forward(LayerWindow window, ActivationStack& stack, MatrixView<const T> x, MatrixView<T> y);
  void backward(LayerWindow window, ActivationStack& stack, const Saved& saved, MatrixView<const T> dy,
                MatrixView<T> dx);

  const Parameter& weight() const { return weight_; }
  std::size_t in() const { return in_; }
  std::size_t out() const { return out_; }

 private:
  MatrixView<const T> weight(LayerWindow window) const { return {window.parameter<T>(weight_), out_, in_}; }

  std::size_t in_;
  std::size_t out_;
  Parameter weight_;
  std::optional<Parameter> bias_;
};

}  // namespace tessera::nn
