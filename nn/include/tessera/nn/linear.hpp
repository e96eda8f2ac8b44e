// A linear layer: y = x Wᵀ + b, with x [batch, in], W [out, in], b [out], y [batch, out].
// The functions enqueue on the stream, capture everything by value, do not synchronise and allocate nothing; a batch of
// 0 rows is fine. Sums over the batch are formed in the order of the rows (bias) and by the BLAS (weights).
#pragma once

#include <cstddef>
#include <optional>

#include "tessera/nn/matrix.hpp"
#include "tessera/shard/module.hpp"
#include "tessera/shard/parameter.hpp"
#include "tessera/shard/window.hpp"

namespace tessera::nn {

struct LinearForward {
  ConstMatrixView x;            // [batch, in]
  ConstMatrixView weight;       // [out, in]
  const float* bias = nullptr;  // [out]; null: none
  MatrixView y;                 // [batch, out]; overlaps nothing
};
void linear_forward(Stream& stream, const LinearForward& operation);  // throws UsageError when shapes do not fit

struct LinearBackward {
  ConstMatrixView x;         // [batch, in]
  ConstMatrixView weight;    // [out, in]
  ConstMatrixView dy;        // [batch, out]
  MatrixView dx;             // [batch, in] = dy W; without data: not wanted
  float* dweight = nullptr;  // [out, in] = dyᵀ x
  float* dbias = nullptr;    // [out] = sum of dy over the batch; null: no bias
  bool accumulate = false;   // adds to dweight and dbias instead of replacing them
};
void linear_backward(Stream& stream, const LinearBackward& operation);  // throws UsageError when shapes do not fit

enum class InputGradient { compute, skip };

struct LinearOptions {
  bool bias = true;
};

class Linear final : public Module {
 public:
  Linear(std::size_t in, std::size_t out, LinearOptions options = {});  // weight and bias start as Initial::fan_in(in)

  void visit(ModuleVisitor& visitor) override;  // "weight", "bias"

  // x must stay as it is until backward() has run. The result is this layer's buffer, valid until its next forward().
  MatrixView forward(Window& window, ConstMatrixView x);
  // The gradient of x: this layer's buffer, valid until its next backward(); empty when skipped.
  MatrixView backward(Window& window, ConstMatrixView dy, InputGradient input = InputGradient::compute);

  const Parameter& weight() const { return weight_; }
  std::size_t in() const { return in_; }
  std::size_t out() const { return out_; }
  Bytes activation_bytes() const { return y_.bytes() + dx_.bytes(); }

 private:
  std::size_t in_;
  std::size_t out_;
  Parameter weight_;
  std::optional<Parameter> bias_;
  std::optional<ConstMatrixView> x_;  // of the last forward()
  Matrix y_;
  Matrix dx_;
};

}  // namespace tessera::nn
