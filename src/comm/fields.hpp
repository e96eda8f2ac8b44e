// Values in messages: numbers in little-endian bytes, texts and blobs with their length in front.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>

#include "comm/job_failure.hpp"

namespace tessera::comm {

static_assert(std::endian::native == std::endian::little, "messages are little-endian, and written as they stand");

// Appends to bytes that somebody else owns.
class FieldWriter {
 public:
  explicit FieldWriter(std::string& out) : out_(out) {}

  template <typename Number>
  void number(Number value) {
    static_assert(std::is_arithmetic_v<Number>);
    char bytes[sizeof(Number)];
    std::memcpy(bytes, &value, sizeof(Number));
    out_.append(bytes, sizeof(Number));
  }
  void text(std::string_view value) {
    number(static_cast<std::uint32_t>(value.size()));
    out_.append(value);
  }
  void raw(std::string_view bytes) { out_.append(bytes); }
  void position(const Position& position) {
    number(static_cast<std::uint32_t>(position.channel));
    number(position.number);
  }

 private:
  std::string& out_;
};

// Reads what a FieldWriter wrote; views refer to the bytes given. Throws DataError when they end too early.
class FieldReader {
 public:
  explicit FieldReader(std::string_view bytes) : rest_(bytes) {}

  template <typename Number>
  Number number() {
    static_assert(std::is_arithmetic_v<Number>);
    Number value;
    std::memcpy(&value, raw(sizeof(Number)).data(), sizeof(Number));
    return value;
  }
  std::string_view text() { return raw(number<std::uint32_t>()); }
  Position position() {
    const std::size_t channel = number<std::uint32_t>();
    return {.channel = channel, .number = number<std::uint64_t>()};
  }
  std::string_view raw(std::size_t size);
  std::string_view rest() { return raw(rest_.size()); }
  bool at_end() const { return rest_.empty(); }
  void require_end() const;

 private:
  std::string_view rest_;
};

}  // namespace tessera::comm
