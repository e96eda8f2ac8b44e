// A pass that only counts keeps this of a window: what the operations that its layers enqueue would compute. Matrix
// products and convolutions have their floating-point operations, and everything has the bytes of the views that it
// reads and writes.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "tessera/shard/window.hpp"

#pragma GCC visibility push(default)

namespace tessera::nn {

// Where products are those of a convolution.
struct CountedConvolution {
  std::size_t kernel;    // pixels
  std::size_t channels;  // of the input, of one group
};

struct CountedOperation {
  double bytes = 0;     // of the views named x, y, dx, dy, residual, qkv and out
  double flops = 0;     // of one product, two for each multiplication with its sum; 0: a pass over memory
  double products = 0;  // of these: a backward pass has one for each gradient that is wanted
  bool backward = false;
  std::optional<CountedConvolution> convolution{};
};

class CountedWork final : public WindowNotes {
 public:
  // Notes one operation: its views, or a struct that has them.
  template <typename... Arguments>
  void note(const Arguments&... arguments) {
    CountedOperation operation;
    (add(operation, arguments), ...);
    operations_.push_back(operation);
  }
  const std::vector<CountedOperation>& operations() const { return operations_; }

 private:
  template <typename View>
  static double bytes_of(const View& view) {
    return static_cast<double>(view.elements() * sizeof(*view.data));
  }
  template <typename Image>
  static bool wanted(const Image& gradient) {
    return gradient.elements() != 0;
  }

  template <typename A>
  static void add(CountedOperation& to, const A& a) {
    if constexpr (
        requires { a.dy; } || requires { a.dqkv; })
      to.backward = true;
    if constexpr (requires {
                    *a.data;
                    a.elements();
                  })
      to.bytes += bytes_of(a);
    if constexpr (requires { a.x.elements(); }) to.bytes += bytes_of(a.x);
    if constexpr (requires { a.y.elements(); }) to.bytes += bytes_of(a.y);
    if constexpr (requires { a.dx.elements(); }) to.bytes += bytes_of(a.dx);
    if constexpr (requires { a.dy.elements(); }) to.bytes += bytes_of(a.dy);
    if constexpr (requires { a.qkv.elements(); }) to.bytes += bytes_of(a.qkv);
    if constexpr (requires { a.out.elements(); }) to.bytes += bytes_of(a.out);
    if constexpr (requires { a.residual.elements(); }) to.bytes += bytes_of(a.residual);
    if constexpr (requires {
                    a.shape.kernel.height;
                    a.shape.groups;
                    a.weight;
                  })
      add_convolution(to, a);
    if constexpr (requires {
                    a.weight.rows;
                    a.weight.columns;
                  })
      add_product(to, a);
    if constexpr (requires {
                    a.shape.heads;
                    a.shape.causal;
                  })
      add_attention(to, a);
  }

  template <typename A>
  static void add_convolution(CountedOperation& to, const A& a) {
    const CountedConvolution of{a.shape.kernel.height * a.shape.kernel.width, a.shape.in / a.shape.groups};
    const auto depth = static_cast<double>(of.kernel * of.channels);
    to.convolution = of;
    if constexpr (requires { a.dy; }) {
      to.flops = 2 * static_cast<double>(a.dy.elements()) * depth;
      to.products = wanted(a.dx) ? 2 : 1;
    } else {
      to.flops = 2 * static_cast<double>(a.y.elements()) * depth;
      to.products = 1;
    }
  }
  template <typename A>
  static void add_product(CountedOperation& to, const A& a) {
    to.flops = 2 * static_cast<double>(a.x.rows) * static_cast<double>(a.weight.rows * a.weight.columns);
    to.products = 1;
    if constexpr (requires { a.dx; }) to.products = wanted(a.dx) ? 2 : 1;
  }
  // Queries by keys, and probabilities by values: both, or the half of each that a causal mask leaves.
  template <typename A>
  static void add_attention(CountedOperation& to, const A& a) {
    to.flops = (a.shape.causal ? 1 : 2) * static_cast<double>(a.shape.rows() * a.shape.sequence * a.shape.dim());
    to.products = requires { a.dqkv; }
    ? 4 : 2;
  }

  std::vector<CountedOperation> operations_;
};

}  // namespace tessera::nn

#pragma GCC visibility pop
