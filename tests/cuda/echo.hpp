// A module that needs no layers.
#pragma once

#include <utility>

#include "tessera/kernels/elementwise.hpp"
#include "tessera/shard/fully_shard.hpp"

namespace tessera::test {

// Its gradient is the parameter itself.
class Echo : public Module {
 public:
  explicit Echo(Initial initial = Initial::ones()) : weight({1000}, std::move(initial)) {}
  void visit(ModuleVisitor& visitor) override { visitor("weight", weight); }
  void forward(Window&) {}
  void backward(Window& window) {
    const auto from = window.parameter<bf16>(weight);
    kernels::copy(window.stream(), window.gradient<bf16>(weight).data(), from.data(), Bytes(from.size_bytes()));
  }
  Parameter weight;
};

}  // namespace tessera::test
