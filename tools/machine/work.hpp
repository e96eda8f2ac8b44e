// What the windows of a model compute, by counting: products, and bytes of passes over activations. Shapes of GPT,
// Llama and perceptrons; of other models the products with their matrices, or what their own passes count.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <tuple>
#include <vector>

#include "machine/machine.hpp"
#include "tessera/nn/counted_work.hpp"
#include "tessera/plan/plan.hpp"

namespace tools {

struct Product {
  double flops;  // of one
  double count = 1;
  std::optional<ConvolutionClass> convolution{};  // of matrices else
  bool backward = false;
};

struct Work {
  std::vector<Product> products;
  std::vector<double> passes;  // bytes that each reads and writes: everything else
  double flops() const;
};

// How many rows the products of a model have, and over how many tokens attention goes.
struct TokenShape {
  std::size_t rows = 1;  // of a micro-batch on a rank: tokens, or samples of a perceptron
  std::size_t seq = 0;   // tokens of a sequence; 0: no attention
};

// The nth window of its kind that the micro-batch has of the unit, counted from 0.
using WindowKey = std::tuple<std::size_t, tessera::plan::WindowKind, std::size_t>;

// Of a micro-batch on a rank.
struct Workload {
  TokenShape shape;
  std::map<WindowKey, Work> counted{};  // by the model's own pass; empty: from the shapes of parameters
};

// What layers noted of one window.
Work work_of(const tessera::nn::CountedWork& counted);

// From the shapes of parameters GPT's embedding looks up in its first forward window, and is the output head in the
// second. Throws InternalError for a window that the model's own pass did not count.
Work work_of(const tessera::plan::Plan& plan, const WindowKey& window, const Workload& load);

// Of a micro-batch, without recomputation: what a share of the peak is counted from.
double model_flops(const tessera::plan::Plan& plan, const Workload& load);

}  // namespace tools
