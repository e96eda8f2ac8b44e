// CRC32C, the Castagnoli polynomial's checksum (RFC 3720, section 12.1), by ISA-L: it finds every error of up to 32
// bits in a row, and is computed faster than a disk reads.
#pragma once

#include <charconv>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace tessera::checkpoint {

// Returns the checksum of `before` and then `bytes`, where `before` has the checksum `checksum`; that of nothing is 0.
std::uint32_t extend_crc32c(std::uint32_t checksum, std::span<const std::byte> bytes);
inline std::uint32_t crc32c(std::span<const std::byte> bytes) { return extend_crc32c(0, bytes); }

// All digits of a number, in lower case: eight of 32 bits, sixteen of 64.
template <std::unsigned_integral T>
std::string to_hexadecimal(T value) {
  std::string text(2 * sizeof(T), '0');
  for (std::size_t i = text.size(); i-- > 0; value >>= 4) text[i] = "0123456789abcdef"[value & 15u];
  return text;
}

// The inverse; nothing for any other text.
template <std::unsigned_integral T>
std::optional<T> from_hexadecimal(std::string_view text) {
  T value = 0;
  if (text.size() != 2 * sizeof(T)) return std::nullopt;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
  if (error != std::errc() || end != text.data() + text.size() || to_hexadecimal(value) != text) return std::nullopt;
  return value;
}

}  // namespace tessera::checkpoint
