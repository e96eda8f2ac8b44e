// The element types that parameters, gradients and wires may have; u8, which states of optimizers may have alone; and
// int8, in which values travel alone (Precision).
#pragma once

#include <cstddef>
#include <string_view>

#include "tessera/base/bytes.hpp"

#pragma GCC visibility push(default)

namespace tessera {

// int8 is blocks of 256 elements, each an fp32 scale and behind it a code of 8 bits, -127 to 127, for each element,
// which is code * scale. The scale is a 127th of the block's largest magnitude, so a value is off by half a scale at
// most, and by the rounding of one product; a block whose largest is below 2^-100 is -0, and one that is not finite is
// no number.
enum class DType { fp32, bf16, fp16, u8, int8 };

// Elements that only stand together: what is of this type has whole blocks.
constexpr std::size_t block_of(DType type) { return type == DType::int8 ? 256 : 1; }
// The bytes of a block, which for all types but int8 is an element.
constexpr Bytes size_of(DType type) {
  if (type == DType::int8) return Bytes(4 + block_of(type));
  return Bytes(type == DType::fp32 ? 4 : type == DType::u8 ? 1 : 2);
}
// The bytes of so many elements, and back.
constexpr Bytes bytes_of(DType type, std::size_t elements) { return size_of(type) * (elements / block_of(type)); }
constexpr std::size_t elements_in(DType type, Bytes bytes) {
  return bytes.count() / size_of(type).count() * block_of(type);
}

std::string_view to_string(DType type);  // "fp32", "bf16", "fp16", "u8", "int8"
// fp32, bf16, fp16 or int8. Throws UsageError, naming the choices.
DType wire_type_from_string(std::string_view name);

}  // namespace tessera

#pragma GCC visibility pop
