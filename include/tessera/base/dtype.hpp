// The element types that parameters, gradients and wires may have, and u8, which states of optimizers may have alone.
#pragma once

#include <string_view>

#include "tessera/base/bytes.hpp"

#pragma GCC visibility push(default)

namespace tessera {

enum class DType { fp32, bf16, fp16, u8 };

constexpr Bytes size_of(DType type) { return Bytes(type == DType::fp32 ? 4 : type == DType::u8 ? 1 : 2); }

std::string_view to_string(DType type);  // "fp32", "bf16", "fp16", "u8"
// A type to compute with. Throws UsageError, naming the choices.
DType dtype_from_string(std::string_view name);

}  // namespace tessera

#pragma GCC visibility pop
