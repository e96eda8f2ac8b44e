// Reading is bounded by the bytes that are there.
#include "comm/fields.hpp"

#include <fmt/format.h>

#include "tessera/base/error.hpp"

namespace tessera::comm {

std::string_view FieldReader::raw(std::size_t size) {
  if (size > rest_.size()) {
    throw DataError(fmt::format("a message ends {} bytes too early", size - rest_.size()));
  }
  const std::string_view bytes = rest_.substr(0, size);
  rest_.remove_prefix(size);
  return bytes;
}

void FieldReader::require_end() const {
  if (!at_end()) throw DataError(fmt::format("a message has {} bytes too many", rest_.size()));
}

}  // namespace tessera::comm
