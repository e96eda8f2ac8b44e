// What the windows of a model compute, by counting: matrix products, and bytes of passes over activations. Shapes of
// GPT, Llama and perceptrons; of other models the products with their matrices.
#pragma once

#include <cstddef>
#include <vector>

#include "tessera/plan/plan.hpp"

namespace tools {

struct Product {
  double flops;  // of one
  double count = 1;
};

struct Work {
  std::vector<Product> products;
  double bytes = 0;  // read and written by everything else
  double flops() const;
};

// How many rows the products of a model have, and over how many tokens attention goes.
struct TokenShape {
  std::size_t rows = 1;  // of a micro-batch on a rank: tokens, or samples of a perceptron
  std::size_t seq = 0;   // tokens of a sequence; 0: no attention
};

// Of the nth window of its kind that the micro-batch has of the unit, counted from 0: GPT's embedding looks up in the
// first, and is the output head in the second.
Work work_of(const tessera::plan::Plan& plan, const tessera::plan::WindowUse& use, std::size_t nth, TokenShape shape);

// Of a micro-batch, without recomputation: what a share of the peak is counted from.
double model_flops(const tessera::plan::Plan& plan, TokenShape shape);

}  // namespace tools
