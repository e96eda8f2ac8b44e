// Whose products they are: what the processor is decides, never a timing, so that a run can be repeated on the same
// machine bit by bit.
#pragma once

#include <string_view>
#include <vector>

namespace tessera::nn {

struct FloatProducts;

// Each has what the one before has, where the processor allows it: own products of fp32 with AVX2, and with AVX-512,
// own products of bf16 with AVX512_BF16, oneDNN's products of bf16. Everything else is OpenBLAS's, 16-bit types
// widened.
enum class ProductSet { openblas, avx2, avx512, avx512_bf16, onednn };

std::string_view to_string(ProductSet set);
std::vector<ProductSet> available_product_sets();  // of this build and machine; `openblas` is always among them

// The set in use: the environment variable TESSERA_PRODUCTS, or the best for this processor: oneDNN's where it has
// tiles (AMX), else the last of the others. Throws UsageError when the variable names none that is available.
ProductSet active_product_set();

// The functions by which the set in use multiplies floats; null: OpenBLAS does.
const FloatProducts* active_float_products();

// Test hook: replaces the set in use, for the whole process. Not while streams run. Throws UsageError when unavailable.
void select_product_set(ProductSet set);

}  // namespace tessera::nn
