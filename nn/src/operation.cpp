// The errors of the layers' operations.
#include "src/operation.hpp"

#include <fmt/format.h>

#include "tessera/base/error.hpp"

namespace tessera::nn {

void require_extents(std::string_view what, Extents extents, std::size_t rows, std::size_t columns) {
  if (extents.rows != rows || extents.columns != columns) {
    throw UsageError(
        fmt::format("{} must be [{}, {}], but is [{}, {}]", what, rows, columns, extents.rows, extents.columns));
  }
}

void refuse_doubles(std::string_view layer, const Stream& stream) {
  throw UnavailableError(fmt::format("{}: elements of type double are for the CPU alone; use float, bf16 or fp16 on {}",
                                     layer, to_string(stream.device())));
}

}  // namespace tessera::nn
