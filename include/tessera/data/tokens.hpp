// Token sequences for language models, cut from a file that is read where a sample needs it.
//
// Two kinds of files, neither with a header:
//   bytes   any file, a text say; each byte is a token, so ids are 0 … 255
//   words   ids as unsigned 16-bit numbers, the low byte first, one after the other (nanoGPT's train.bin)
// Sample i of sequences of length T is tokens [i·T, i·T + T + 1): T inputs, and as targets the token after each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "tessera/data/sampler.hpp"

#pragma GCC visibility push(default)

namespace tessera {

// The vectors keep their capacity when a batch is filled again.
struct TokenBatch {
  std::size_t rows = 0;
  std::size_t columns = 0;            // tokens of a sequence
  std::vector<std::int32_t> inputs;   // [rows, columns], row-major
  std::vector<std::int32_t> targets;  // [rows, columns]
  std::vector<float> weights;         // [rows, columns]: SampleBatch::weights of the row, for each target
  std::uint64_t epoch = 0;
  std::size_t global_samples = 0;
};

enum class TokenFormat { bytes, words };

namespace data {
class OpenFile;
}

// A file of tokens. The ranks of a process share one; it must not change while it is open.
// Thread safety: all of it may be used from several threads.
class TokenFile {
 public:
  // Ids are 0 … vocabulary - 1; default: 256 for bytes, the largest id + 1 for words. Throws DataError naming the file,
  // the offset in bytes, and what to do: missing, not a regular file, empty, words of an odd number of bytes, an id
  // beyond the vocabulary. Reads the whole file once, but for bytes with a vocabulary of 256 or more.
  TokenFile(const std::filesystem::path& path, TokenFormat format,
            std::optional<std::size_t> vocabulary = std::nullopt);
  TokenFile(const TokenFile&) = delete;
  TokenFile& operator=(const TokenFile&) = delete;
  ~TokenFile();

  const std::filesystem::path& path() const { return path_; }
  TokenFormat format() const { return format_; }
  std::size_t size() const { return size_; }  // tokens
  std::size_t vocabulary() const { return vocabulary_; }

  // Copies tokens [first, first + out.size()). Throws UsageError beyond the end, and DataError where the file was cut
  // off since it was opened, or cannot be read.
  void read(std::size_t first, std::span<std::int32_t> out) const;

 private:
  std::size_t largest_below(std::size_t limit) const;
  template <typename Visit>
  void for_each(std::size_t first, std::size_t count, Visit visit) const;

  std::filesystem::path path_;
  TokenFormat format_;
  std::unique_ptr<const data::OpenFile> file_;
  std::size_t size_;
  std::size_t vocabulary_;
};

// A stretch of a file as samples, for a DistributedSampler's indices.
class TokenSequences {
 public:
  // Tokens [first, first + count) in sequences of `length`; what is left at the end is not used. Throws UsageError for
  // a length of 0 or a stretch beyond the file, and DataError when it is too short for one sequence, unless it is
  // empty.
  TokenSequences(std::shared_ptr<const TokenFile> file, std::size_t length, std::size_t first, std::size_t count);

  std::size_t size() const { return samples_; }
  std::size_t length() const { return length_; }
  std::size_t tokens() const { return samples_ * length_; }  // targets of all samples
  const TokenFile& file() const { return *file_; }

  // Fills `batch` with the chosen samples. May be called from any thread. Throws UsageError for an index >= size().
  void read(const SampleBatch& chosen, TokenBatch& batch) const;

 private:
  std::shared_ptr<const TokenFile> file_;
  std::size_t length_;
  std::size_t first_;
  std::size_t samples_;
};

struct TokenSplit {
  TokenSequences training;
  TokenSequences held_out;
};

// Holds out the file's last `fraction` (0 … 1) of tokens; the parts share no token. Throws as TokenSequences does, and
// UsageError for another fraction.
TokenSplit split(const std::shared_ptr<const TokenFile>& file, std::size_t length, double fraction);

}  // namespace tessera

#pragma GCC visibility pop
