// Each way to multiply says what it needs of the build and the processor.
#include "src/products/choice.hpp"

#include <fmt/format.h>

#include "src/choice.hpp"
#include "src/products/onednn.hpp"
#include "src/products/product.hpp"
#include "tessera/base/error.hpp"

namespace tessera::nn {

using kernels::InstructionSet;

namespace {

bool is_available(ProductSet set) {
  switch (set) {
    case ProductSet::openblas: return true;
    case ProductSet::avx2: return find_float_products(InstructionSet::avx2) != nullptr;
    case ProductSet::avx512: return find_float_products(InstructionSet::avx512) != nullptr;
    case ProductSet::avx512_bf16: return find_pair_products() != nullptr;
    case ProductSet::onednn: return onednn::available();
  }
  return false;
}

ProductSet best_set() {
  if (onednn::has_tiles()) return ProductSet::onednn;
  std::vector<ProductSet> sets = available_product_sets();
  std::erase(sets, ProductSet::onednn);
  return sets.back();
}

Choice<ProductSet>& choice_of_products() {
  static Choice<ProductSet> made({.variable = "TESSERA_PRODUCTS",
                                  .what = "products",
                                  .verb = "are",
                                  .available = available_product_sets(),
                                  .best = best_set()});
  return made;
}

}  // namespace

std::string_view to_string(ProductSet set) {
  switch (set) {
    case ProductSet::openblas: return "openblas";
    case ProductSet::avx2: return "avx2";
    case ProductSet::avx512: return "avx512";
    case ProductSet::avx512_bf16: return "avx512_bf16";
    case ProductSet::onednn: return "onednn";
  }
  throw InternalError(fmt::format("ProductSet has no member {}", static_cast<int>(set)));
}

std::vector<ProductSet> available_product_sets() {
  std::vector<ProductSet> sets{ProductSet::openblas, ProductSet::avx2, ProductSet::avx512, ProductSet::avx512_bf16,
                               ProductSet::onednn};
  std::erase_if(sets, [](ProductSet set) { return !is_available(set); });
  return sets;
}

ProductSet active_product_set() { return choice_of_products().active(); }
void select_product_set(ProductSet set) { choice_of_products().select(set); }

const FloatProducts* active_float_products() {
  static const FloatProducts* const avx2 = find_float_products(InstructionSet::avx2);
  static const FloatProducts* const avx512 = find_float_products(InstructionSet::avx512);
  switch (active_product_set()) {
    case ProductSet::openblas: return nullptr;
    case ProductSet::avx2: return avx2;
    default: return avx512 != nullptr ? avx512 : avx2;
  }
}

}  // namespace tessera::nn
