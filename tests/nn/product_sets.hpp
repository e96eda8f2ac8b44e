// Whose products a test takes, and back.
#pragma once

#include <doctest/doctest.h>

#include <vector>

#include "src/products/choice.hpp"

class WithProducts {
 public:
  explicit WithProducts(tessera::nn::ProductSet set) { tessera::nn::select_product_set(set); }
  ~WithProducts() { tessera::nn::select_product_set(before_); }
  WithProducts(const WithProducts&) = delete;
  WithProducts& operator=(const WithProducts&) = delete;

 private:
  tessera::nn::ProductSet before_ = tessera::nn::active_product_set();
};

// Products that allocate nothing: the best of them without oneDNN's.
inline WithProducts without_onednn() {
  std::vector<tessera::nn::ProductSet> sets = tessera::nn::available_product_sets();
  std::erase(sets, tessera::nn::ProductSet::onednn);
  return WithProducts(sets.back());
}
