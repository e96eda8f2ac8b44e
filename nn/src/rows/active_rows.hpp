// The row loops in use, those of the instruction set that kernels/instruction_set.hpp chose, and what is handed to
// them.
#pragma once

#include <cstddef>
#include <type_traits>

#include "src/rows/row_table.hpp"
#include "tessera/nn/dropout.hpp"
#include "tessera/nn/element.hpp"

#pragma GCC visibility push(default)

namespace tessera::nn {

const RowTable& active_rows();

template <Element T>
inline constexpr Format format_of = std::is_same_v<T, double>  ? Format::fp64
                                    : std::is_same_v<T, float> ? Format::fp32
                                    : std::is_same_v<T, bf16>  ? Format::bf16
                                                               : Format::fp16;

// Returns what the words of so many rows from the key's first one are drawn from. Throws UsageError for a probability
// outside [0, 1) and for rows beyond 2^48.
DropoutMask mask_of(const Dropout& dropout, std::size_t rows);

}  // namespace tessera::nn

#pragma GCC visibility pop
