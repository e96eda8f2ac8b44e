// Tokens of a file, whose ids are checked once, when it is opened; its samples, and their split into training and
// held-out ones.
#include "tessera/data/tokens.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <string>
#include <utility>

#include "tessera/base/error.hpp"
#include "tessera/data/open_file.hpp"

namespace tessera {

namespace {

constexpr std::size_t read_at_once = std::size_t{16} << 10;  // bytes that are read at once
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
      file_(std::make_unique<data::OpenFile>(path, "a file of tokens")),
      size_(file_->size() / bytes_of(format)) {
  if (file_->size() == 0) throw DataError(fmt::format("{}: is empty", path.string()));
  check(path.string(), format, file_->size(), vocabulary.value_or(byte_ids));
  if (format == TokenFormat::bytes) {
    vocabulary_ = vocabulary.value_or(byte_ids);
    if (vocabulary_ < byte_ids) largest_below(vocabulary_);
  } else {
    const std::size_t largest = largest_below(vocabulary.value_or(word_ids));
    vocabulary_ = vocabulary.value_or(largest + 1);
  }
}

TokenFile::~TokenFile() = default;

// Calls visit(token, its place) for [first, first + count).
template <typename Visit>
void TokenFile::for_each(std::size_t first, std::size_t count, Visit visit) const {
  std::array<std::byte, read_at_once> bytes;
  const std::size_t width = bytes_of(format_);
  for (std::size_t done = 0; done < count;) {
    const std::size_t now = std::min(read_at_once / width, count - done);
    file_->read((first + done) * width, std::span(bytes).first(now * width));
    for (std::size_t i = 0; i < now; ++i) visit(token_at(bytes, format_, i), first + done + i);
    done += now;
  }
}

std::size_t TokenFile::largest_below(std::size_t limit) const {
  std::size_t largest = 0;
  for_each(0, size_, [&](std::size_t token, std::size_t place) {
    largest = std::max(largest, token);
    if (token < limit) return;
    throw DataError(
        fmt::format("{}: the token at byte {} is {}, but a vocabulary of {} ends at {}: give a larger vocabulary, or "
                    "a file of its tokens",
                    path_.string(), place * bytes_of(format_), token, limit, limit - 1));
  });
  return largest;
}

void TokenFile::read(std::size_t first, std::span<std::int32_t> out) const {
  if (first > size_ || out.size() > size_ - first) {
    throw UsageError(fmt::format("{}: {} tokens were asked for from token {} on, but there are {}", path_.string(),
                                 out.size(), first, size_));
  }
  for_each(first, out.size(),
           [&](std::size_t token, std::size_t place) { out[place - first] = static_cast<std::int32_t>(token); });
}

TokenSequences::TokenSequences(std::shared_ptr<const TokenFile> file, std::size_t length, std::size_t first,
                               std::size_t count)
    : file_(std::move(file)), length_(length), first_(first), samples_(0) {
  if (length_ == 0) throw UsageError("TokenSequences: length must be above 0, but is 0");
  if (first > file_->size() || count > file_->size() - first) {
    throw UsageError(fmt::format("{}: tokens {} to {} were asked for, but there are {}", file_->path().string(), first,
                                 first + count, file_->size()));
  }
  if (count == 0) return;
  samples_ = (count - 1) / length_;
  if (samples_ > 0) return;
  throw DataError(
      fmt::format("{}: the {} tokens from token {} on are too few for a sequence of {}, which takes one more than its "
                  "length: take shorter sequences, a larger file or another part of it",
                  file_->path().string(), count, first, length_));
}

void TokenSequences::read(const SampleBatch& chosen, TokenBatch& batch) const {
  batch.rows = chosen.indices.size();
  batch.columns = length_;
  batch.inputs.resize(batch.rows * length_);
  batch.targets.resize(batch.rows * length_);
  batch.weights.resize(batch.rows * length_);
  batch.epoch = chosen.epoch;
  batch.global_samples = chosen.global_samples;
  for (std::size_t row = 0; row < batch.rows; ++row) {
    const std::size_t index = chosen.indices[row];
    if (index >= size()) throw UsageError(fmt::format("sample {} was asked for, but there are {}", index, size()));
    const std::size_t first = first_ + index * length_;
    const auto inputs = std::span(batch.inputs).subspan(row * length_, length_);
    const auto targets = std::span(batch.targets).subspan(row * length_, length_);
    file_->read(first, inputs);
    std::copy(inputs.begin() + 1, inputs.end(), targets.begin());
    file_->read(first + length_, targets.last(1));
    std::fill_n(batch.weights.data() + row * length_, length_, chosen.weights[row]);
  }
}

TokenSplit split(const std::shared_ptr<const TokenFile>& file, std::size_t length, double fraction) {
  if (!(fraction >= 0.0 && fraction <= 1.0)) {
    throw UsageError(fmt::format("split: the held-out fraction must be from 0 to 1, but is {}", fraction));
  }
  const std::size_t all = file->size();
  const std::size_t held_out = std::min(all, static_cast<std::size_t>(fraction * static_cast<double>(all)));
  return {.training = TokenSequences(file, length, 0, all - held_out),
          .held_out = TokenSequences(file, length, all - held_out, held_out)};
}

}  // namespace tessera
