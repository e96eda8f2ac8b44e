// The tokens of a run: those that it trains on, and those held out to measure what it learned. Mapped once, and shared
// by the ranks of the process.
#pragma once

#include <cstddef>
#include <string>

#include "tessera/data/tokens.hpp"
#include "train_gpt/options.hpp"

namespace examples {

struct TokenData {
  std::string name;  // "shakespeare", "train.bin"
  tessera::TokenSplit parts;
  std::size_t vocabulary;  // of the model; the file's ids are below parts.training.file().vocabulary()

  const tessera::TokenFile& file() const { return parts.training.file(); }
  bool is_text() const { return file().format() == tessera::TokenFormat::bytes; }
};

// Throws DataError naming the file.
TokenData load_tokens(const GptOptions& options);

}  // namespace examples
