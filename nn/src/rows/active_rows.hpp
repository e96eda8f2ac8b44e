// The row loops in use: those of the instruction set that kernels/instruction_set.hpp chose.
#pragma once

#include <type_traits>

#include "src/rows/row_table.hpp"
#include "tessera/nn/element.hpp"

namespace tessera::nn {

const RowTable& active_rows();

template <Element T>
inline constexpr Format format_of = std::is_same_v<T, double>  ? Format::fp64
                                    : std::is_same_v<T, float> ? Format::fp32
                                    : std::is_same_v<T, bf16>  ? Format::bf16
                                                               : Format::fp16;

}  // namespace tessera::nn
