// Extents, multiplied and printed.
#include "tessera/base/shape.hpp"

#include <fmt/format.h>

#include <limits>

#include "tessera/base/error.hpp"

namespace tessera {

std::size_t element_count(const Shape& shape) {
  // An extent of 0 makes the tensor empty, however large the others are.
  for (const std::size_t extent : shape) {
    if (extent == 0) return 0;
  }
  std::size_t count = 1;
  for (const std::size_t extent : shape) {
    if (count > std::numeric_limits<std::size_t>::max() / extent) {
      throw UsageError(fmt::format("shape {} has more elements than this machine can count", to_string(shape)));
    }
    count *= extent;
  }
  return count;
}

std::string to_string(const Shape& shape) {
  std::string text = "[";
  for (const std::size_t extent : shape) text += (text.size() > 1 ? ", " : "") + std::to_string(extent);
  return text + "]";
}

}  // namespace tessera
