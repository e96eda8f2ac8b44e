// Names of element types.
#include "tessera/base/dtype.hpp"

#include <fmt/format.h>

#include "tessera/base/error.hpp"

namespace tessera {

std::string_view to_string(DType type) {
  switch (type) {
    case DType::fp32: return "fp32";
    case DType::bf16: return "bf16";
    case DType::fp16: return "fp16";
    case DType::u8: return "u8";
    case DType::int8: return "int8";
  }
  throw InternalError("an element type without a name");
}

DType wire_type_from_string(std::string_view name) {
  for (const DType type : {DType::fp32, DType::bf16, DType::fp16, DType::int8}) {
    if (name == to_string(type)) return type;
  }
  throw UsageError(fmt::format("unknown type to travel in \"{}\": choose fp32, bf16, fp16 or int8", name));
}

}  // namespace tessera
