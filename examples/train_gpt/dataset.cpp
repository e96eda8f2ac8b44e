// Where tokens come from.
#include "train_gpt/dataset.hpp"

#include <algorithm>
#include <filesystem>
#include <memory>

namespace examples {

namespace {

using tessera::TokenFile;
using tessera::TokenFormat;

constexpr double held_out_part = 0.05;
constexpr double most_held_out = 131072;  // tokens: enough to know the loss, and soon evaluated

std::filesystem::path path_of(const std::string& data) {
  if (data == "shakespeare") return std::filesystem::path(EXAMPLES_DATA_DIRECTORY) / "shakespeare.txt";
  return data;
}

}  // namespace

TokenData load_tokens(const GptOptions& options) {
  const std::filesystem::path path = path_of(options.data);
  const TokenFormat format = path.extension() == ".bin" ? TokenFormat::words : TokenFormat::bytes;
  const auto file = std::make_shared<TokenFile>(path, format, options.vocabulary);
  const double part = std::min(held_out_part, most_held_out / static_cast<double>(file->size()));
  return {.name = options.data == "shakespeare" ? options.data : path.filename().string(),
          .parts = tessera::split(file, options.seq, part),
          .vocabulary = options.vocabulary.value_or(std::max(file->vocabulary(), options.least_vocabulary))};
}

}  // namespace examples
