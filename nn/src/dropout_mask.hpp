// From a dropout's key to what the row loops draw their words from.
#pragma once

#include <cstddef>

#include "src/rows/row_table.hpp"
#include "tessera/nn/dropout.hpp"

namespace tessera::nn {

// For so many rows from the key's first one. Throws UsageError for a probability outside [0, 1) and for rows beyond
// 2^48.
DropoutMask mask_of(const Dropout& dropout, std::size_t rows);

}  // namespace tessera::nn
