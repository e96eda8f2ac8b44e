// As kernels/instruction_set.cpp chooses row loops.
#include "src/products/choice.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>

#include "src/products/onednn.hpp"
#include "src/products/product.hpp"
#include "tessera/base/error.hpp"

namespace tessera::nn {

namespace {

constexpr const char* variable = "TESSERA_PRODUCTS";

bool is_available(ProductSet set) {
  switch (set) {
    case ProductSet::openblas: return true;
    case ProductSet::avx512: return find_float_products() != nullptr;
    case ProductSet::avx512_bf16: return find_pair_products() != nullptr;
    case ProductSet::onednn: return onednn::available();
  }
  return false;
}

std::string available_names() {
  std::vector<std::string_view> names;
  for (const ProductSet set : available_product_sets()) names.push_back(to_string(set));
  return fmt::format("{}", fmt::join(names, ", "));
}

ProductSet best_set() {
  if (onednn::has_tiles()) return ProductSet::onednn;
  std::vector<ProductSet> sets = available_product_sets();
  std::erase(sets, ProductSet::onednn);
  return sets.back();
}

ProductSet initial_set() {
  const char* const wish = std::getenv(variable);
  if (wish == nullptr) return best_set();
  for (const ProductSet set : available_product_sets()) {
    if (to_string(set) == wish) return set;
  }
  throw UsageError(fmt::format("{}=\"{}\": no such products in this build and on this machine; available: {}", variable,
                               wish, available_names()));
}

std::atomic<ProductSet>& active_set() {
  static std::atomic<ProductSet> set = initial_set();
  return set;
}

}  // namespace

std::string_view to_string(ProductSet set) {
  switch (set) {
    case ProductSet::openblas: return "openblas";
    case ProductSet::avx512: return "avx512";
    case ProductSet::avx512_bf16: return "avx512_bf16";
    case ProductSet::onednn: return "onednn";
  }
  throw InternalError(fmt::format("ProductSet has no member {}", static_cast<int>(set)));
}

std::vector<ProductSet> available_product_sets() {
  std::vector<ProductSet> sets{ProductSet::openblas, ProductSet::avx512, ProductSet::avx512_bf16, ProductSet::onednn};
  std::erase_if(sets, [](ProductSet set) { return !is_available(set); });
  return sets;
}

ProductSet active_product_set() { return active_set().load(std::memory_order_relaxed); }

void select_product_set(ProductSet set) {
  if (!is_available(set)) {
    throw UsageError(fmt::format("products of {} are not in this build and on this machine; available: {}",
                                 to_string(set), available_names()));
  }
  active_set() = set;
}

}  // namespace tessera::nn
