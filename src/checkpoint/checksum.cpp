// ISA-L computes the remainder alone; the complements before and after it are the standard's.
#include "checkpoint/checksum.hpp"

#include <isa-l/crc.h>

#include <algorithm>

namespace tessera::checkpoint {

std::uint32_t extend_crc32c(std::uint32_t checksum, std::span<const std::byte> bytes) {
  constexpr std::size_t most_at_once = std::size_t{1} << 30;  // its lengths are of type int
  std::uint32_t remainder = ~checksum;
  while (!bytes.empty()) {
    const std::span<const std::byte> part = bytes.first(std::min(bytes.size(), most_at_once));
    // It takes a pointer to what may be written, and writes nothing.
    auto* const begin = const_cast<unsigned char*>(reinterpret_cast<const unsigned char*>(part.data()));
    remainder = crc32_iscsi(begin, static_cast<int>(part.size()), remainder);
    bytes = bytes.subspan(part.size());
  }
  return ~remainder;
}

}  // namespace tessera::checkpoint
