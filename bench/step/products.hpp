// The products of a step by themselves: what the layers' matrix products and attention take when nothing else runs.
#pragma once

#include <cstddef>
#include <vector>

#include "tessera/nn/attention.hpp"
#include "tessera/plan/strategy.hpp"

namespace bench {

struct LinearShape {
  std::size_t rows;
  std::size_t in;
  std::size_t out;
  bool wants_dx = true;  // the gradient of its input
};

struct Products {
  std::vector<LinearShape> linear = {};  // forward and backward, each with weights of its own
  tessera::nn::AttentionShape attention = {};
  std::size_t attentions = 0;  // forward and backward, so many times

  double linear_operations() const;  // multiplications and additions, of all linear layers
};

struct ProductTimes {
  double linear;     // seconds, of all linear layers, forward and backward
  double attention;  // likewise
};

// Medians over rounds, on the calling thread. T is the parameters' type of `precision`.
ProductTimes measure(const Products& products, const tessera::Precision& precision, std::size_t rounds);

// Operations per second of one large product, n × n × n, in fp32.
double large_product_rate(std::size_t n, std::size_t rounds);

}  // namespace bench
