// A linear layer: y = x Wᵀ + b, with x [batch, in], W [out, in], b [out], y [batch, out].
// The functions enqueue on the stream, capture everything by value, do not synchronise and allocate nothing; a batch of
// 0 rows is fine. Sums over the batch are formed in the order of the rows (bias) and by the BLAS (weights); on a CUDA
// device in an order that depends on the shape alone, and products are cuBLASLt's: UnavailableError where it is
// missing.
#pragma once

#include <cstddef>
#include <optional>

#include "tessera/device/device.hpp"
#include "tessera/nn/activation_stack.hpp"
#include "tessera/nn/element.hpp"
#include "tessera/nn/layer.hpp"
#include "tessera/nn/slices.hpp"
#include "tessera/nn/view.hpp"
#include "tessera/shard/module.hpp"
#include "tessera/shard/parameter.hpp"

#pragma GCC visibility push(default)

namespace tessera::nn {

template <Element T>
struct LinearForward {
  MatrixView<const T> x;       // [batch, in]
  MatrixView<const T> weight;  // [out, in]
  const T* bias = nullptr;     // [out]; null: none
  MatrixView<T> y;             // [batch, out]; overlaps nothing
  MatrixView<T> gelu = {};     // [batch, out] = gelu(y), as gelu.hpp has it; without columns: not wanted
  // [batch, out], added to y; without columns: nothing is. Not with gelu. On the CPU y is rounded to T before, on a
  // CUDA device only after.
  MatrixView<const T> residual = {};
  std::size_t y_stride = 0;  // from row to row of y; 0: out. Others on CUDA devices alone, without bias, gelu, residual
  float* scratch = nullptr;  // linear_scratch<T>(batch, in, out, device) floats
};
template <Element T>
void linear_forward(Stream& stream, const LinearForward<T>& operation);  // throws UsageError when shapes do not fit

template <Element T>
struct LinearBackward {
  MatrixView<const T> x;       // [batch, in]
  MatrixView<const T> weight;  // [out, in]
  MatrixView<const T> dy;      // [batch, out]
  MatrixView<T> dx;            // [batch, in] = dy W; without columns: not wanted
  // [batch, in]: x is gelu(gelu_x), and dx becomes the gradient of gelu_x; without columns: it is not.
  MatrixView<const T> gelu_x = {};
  std::size_t dy_stride = 0;  // elements from row to row of dy; 0: out. Others on CUDA devices alone, without dbias
  T* dweight = nullptr;       // [out, in] = dyᵀ x; null: not wanted
  T* dbias = nullptr;         // [out] = sum of dy over the batch; null: not wanted
  bool accumulate = false;    // adds to dweight and dbias instead of replacing them
  float* scratch = nullptr;   // linear_scratch<T>(batch, in, out, device) floats
};
template <Element T>
void linear_backward(Stream& stream, const LinearBackward<T>& operation);  // throws UsageError when shapes do not fit

// Floats that either direction needs: on the CPU none for float and double; on CUDA devices at most 32 MiB of them.
template <Element T>
std::size_t linear_scratch(std::size_t batch, std::size_t in, std::size_t out, DeviceKind device = DeviceKind::cpu);

// Ranks along Axis::tensor have parts of a linear layer and of its rows: some of the outputs of all rows, or, of all
// rows, the products of some of the inputs, of whose sum each keeps some of the rows.
enum class LinearCut { none, outputs, inputs };

struct LinearOptions {
  bool bias = true;
  std::optional<Initial> initial_weight = std::nullopt;  // default: Initial::fan_in(in), and the bias likewise
  std::optional<Initial> initial_bias = std::nullopt;
  Slices slices = {};
  LinearCut cut = LinearCut::none;  // with one slice: none
  std::size_t blocks = 1;           // the outputs are so many blocks, each of which is cut by itself
};

template <Element T>
class Linear final : public Module {
 public:
  Linear(std::size_t in, std::size_t out, const LinearOptions& options = {});

  void visit(ModuleVisitor& visitor) override;  // "weight", "bias"

  struct Saved {
    MatrixView<const T> x;
  };
  // gelu and gelu_x as in LinearForward and LinearBackward; gelu not with a residual in y. Of a layer that is cut, x or
  // y has this rank's rows, and the other one all rows of this rank's inputs or outputs.
  Saved forward(Window& window, ActivationStack& stack, MatrixView<const T> x, Target<T> y, MatrixView<T> gelu = {});
  void backward(Window& window, ActivationStack& stack, const Saved& saved, MatrixView<const T> dy, MatrixView<T> dx,
                MatrixView<const T> gelu_x = {});
  using Between = MatrixView<const T>;  // dy, which stays
  Between backward_input(Window& window, ActivationStack& stack, const Saved& saved, MatrixView<const T> dy,
                         MatrixView<T> dx, MatrixView<const T> gelu_x = {});
  void backward_parameters(Window& window, ActivationStack& stack, const Saved& saved, const Between& dy);

  std::size_t in() const { return in_; }  // of this rank
  std::size_t out() const { return out_; }

 private:
  void multiply(Window& window, ActivationStack& stack, MatrixView<const T> x, Target<T> y, MatrixView<T> gelu);
  struct Wanted {
    MatrixView<T> dx;
    bool weights;
  };
  MatrixView<const T> all_of(Window& window, const Saved& saved, MatrixView<const T> dy);
  void multiply_back(Window& window, ActivationStack& stack, const LinearBackward<T>& of, const Wanted& wanted);

  MatrixView<const T> weight(Window& window) const { return {parameter_of<T>(window, weight_), out_, in_}; }

  LinearCut cut_;
  bool has_bias_here_;  // of a sum over slices the first one brings it
  std::size_t in_;
  std::size_t out_;
  Parameter weight_;
  std::optional<Parameter> bias_;
  std::optional<SlicedRows<T>> gathered_;   // x, or dy
  std::optional<SlicedRows<T>> again_;      // x once more, for the gradient of the weights
  std::optional<SlicedRows<T>> scattered_;  // dx, or y
};

}  // namespace tessera::nn

#pragma GCC visibility pop
