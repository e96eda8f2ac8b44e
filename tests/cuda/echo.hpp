// A module that needs no layers.
#pragma once

#include <utility>

#include "tessera/kernels/elementwise.hpp"
#include "tessera/shard/fully_shard.hpp"

namespace tessera::test {

// Its gradient is the parameter itself. T is the type of both.
template <typename T = bf16>
class Echo : public Module {
 public:
  explicit Echo(Initial initial = Initial::ones(), std::size_t elements = 1000)
      : weight({elements}, std::move(initial)) {}
  void visit(ModuleVisitor& visitor) override { visitor("weight", weight); }
  void forward(Window&) {}
  void backward(Window& window) {
    const auto from = window.parameter<T>(weight);
    kernels::copy(window.stream(), window.gradient<T>(weight).data(), from.data(), Bytes(from.size_bytes()));
  }
  Parameter weight;
};

}  // namespace tessera::test
