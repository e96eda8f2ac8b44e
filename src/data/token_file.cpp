// Tokens of a mapped file. Ids are checked once, when it is opened.
#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "data/mapped_file.hpp"
#include "tessera/base/error.hpp"
#include "tessera/data/tokens.hpp"

namespace tessera {

namespace {

constexpr std::size_t byte_ids = 256;
constexpr std::size_t word_ids = 65536;
constexpr std::size_t most_ids = std::numeric_limits<std::int32_t>::max();

std::size_t bytes_of(TokenFormat format) { return format == TokenFormat::bytes ? 1 : 2; }

std::size_t token_at(std::span<const std::byte> bytes, TokenFormat format, std::size_t index) {
  if (format == TokenFormat::bytes) return std::to_integer<std::size_t>(bytes[index]);
  return std::to_integer<std::size_t>(bytes[2 * index]) | std::to_integer<std::size_t>(bytes[2 * index + 1]) << 8;
}

void check(const std::string& path, TokenFormat format, std::size_t bytes, std::size_t vocabulary) {
  if (vocabulary == 0 || vocabulary > most_ids) {
    throw UsageError(fmt::format("TokenFile: a vocabulary has 1 to {} ids, not {}", most_ids, vocabulary));
  }
  if (bytes % bytes_of(format) == 0) return;
  throw DataError(
      fmt::format("{}: ends in the middle of a token at byte {}: 16-bit tokens make an even number of bytes; either it "
                  "was cut off, or it is a file of another kind",
                  path, bytes - 1));
}

}  // namespace

TokenFile::TokenFile(const std::filesystem::path& path, TokenFormat format, std::optional<std::size_t> vocabulary)
    : path_(path),
      format_(format),
      mapped_(std::make_unique<data::MappedFile>(path)),
      size_(mapped_->bytes().size() / bytes_of(format)) {
  check(path.string(), format, mapped_->bytes().size(), vocabulary.value_or(byte_ids));
  if (format == TokenFormat::bytes) {
    vocabulary_ = vocabulary.value_or(byte_ids);
    if (vocabulary_ < byte_ids) largest_below(vocabulary_);
  } else {
    const std::size_t largest = largest_below(vocabulary.value_or(word_ids));
    vocabulary_ = vocabulary.value_or(largest + 1);
  }
}

TokenFile::~TokenFile() = default;

std::size_t TokenFile::largest_below(std::size_t limit) const {
  const std::span<const std::byte> bytes = mapped_->bytes();
  std::size_t largest = 0;
  for (std::size_t i = 0; i < size_; ++i) {
    const std::size_t token = token_at(bytes, format_, i);
    largest = std::max(largest, token);
    if (token < limit) continue;
    throw DataError(
        fmt::format("{}: the token at byte {} is {}, but a vocabulary of {} ends at {}: give a larger vocabulary, or "
                    "a file of its tokens",
                    path_.string(), i * bytes_of(format_), token, limit, limit - 1));
  }
  return largest;
}

void TokenFile::read(std::size_t first, std::span<std::int32_t> out) const {
  if (first > size_ || out.size() > size_ - first) {
    throw UsageError(fmt::format("{}: {} tokens were asked for from token {} on, but there are {}", path_.string(),
                                 out.size(), first, size_));
  }
  const std::span<const std::byte> bytes = mapped_->bytes();
  for (std::size_t i = 0; i < out.size(); ++i) {
    out[i] = static_cast<std::int32_t>(token_at(bytes, format_, first + i));
  }
}

}  // namespace tessera
