// Whose products a test takes, and back.
#pragma once

#include <doctest/doctest.h>

#include <vector>

#include "chosen.hpp"
#include "src/products/choice.hpp"

using WithProducts = Chosen<tessera::nn::select_product_set, tessera::nn::active_product_set>;

// Products that allocate nothing: the best of them without oneDNN's.
inline WithProducts without_onednn() {
  std::vector<tessera::nn::ProductSet> sets = tessera::nn::available_product_sets();
  std::erase(sets, tessera::nn::ProductSet::onednn);
  return WithProducts(sets.back());
}
