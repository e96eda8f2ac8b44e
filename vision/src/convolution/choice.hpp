// The way in which convolutions are computed is chosen by what the build and the processor have, never by a timing (as
// products are, in products/choice.hpp).
#pragma once

#include <string_view>
#include <vector>

namespace tessera::vision::convolutions {

// Convolutions are products of what the kernel sees, or oneDNN's (fp32, and bf16 where the processor multiplies it),
// which leaves to products what it has no kernel for.
enum class Set { products, onednn };

std::string_view to_string(Set set);
std::vector<Set> available();  // of this build and machine; `products` is always among them

// In use: what the environment variable TESSERA_CONVOLUTIONS names, else the last that is available. Throws UsageError
// when the variable names none that is.
Set active();

// Test hook, as select_product_set().
void select(Set set);

}  // namespace tessera::vision::convolutions
