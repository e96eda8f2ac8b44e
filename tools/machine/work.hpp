// The work of a model's windows is counted here: products, and bytes of passes over activations. GPT, Llama and
// perceptrons are known by their shapes; other models have the products with their matrices, or what their own passes
// count.
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

// The load is that of a micro-batch on a rank.
struct Workload {
  TokenShape shape;
  std::map<WindowKey, Work> counted{};  // by the model's own pass; empty: from the shapes of parameters
};

// Converts what layers noted of one window.
Work work_of(const tessera::nn::CountedWork& counted);

// From the shapes of parameters GPT's embedding looks up in its first forward window, and is the output head in the
// second. Throws InternalError for a window that the model's own pass did not count.
Work work_of(const tessera::plan::Plan& plan, const WindowKey& window, const Workload& load);

// Counts a micro-batch without recomputation: shares of the peak are counted from it.
double model_flops(const tessera::plan::Plan& plan, const Workload& load);

}  // namespace tools
