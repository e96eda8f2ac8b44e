// The element types that parameters, gradients and wires may have.
#pragma once

#include <string_view>

#include "tessera/base/bytes.hpp"

#pragma GCC visibility push(default)

namespace tessera {

enum class DType { fp32, bf16, fp16 };

constexpr Bytes size_of(DType type) { return Bytes(type == DType::fp32 ? 4 : 2); }

std::string_view to_string(DType type);          // "fp32", "bf16", "fp16"
DType dtype_from_string(std::string_view name);  // throws UsageError, naming the choices

}  // namespace tessera

#pragma GCC visibility pop
