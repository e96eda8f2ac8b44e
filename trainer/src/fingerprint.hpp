// Tells data of the same size apart, so that a run goes on with the data that it began with, and ranks train on the
// same.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/comm/start.hpp"
#include "tessera/trainer/run_options.hpp"

namespace tessera::trainer {

// FNV-1a of 64 bits.
class Fingerprint {
 public:
  void add(std::span<const std::byte> bytes) {
    for (const std::byte byte : bytes) hash_ = (hash_ ^ static_cast<std::uint64_t>(byte)) * 0x100000001b3ull;
  }
  void add(std::string_view text) { add(std::as_bytes(std::span(text))); }
  std::uint64_t number() const { return hash_; }
  std::string text() const { return fmt::format("{:016x}", hash_); }

 private:
  std::uint64_t hash_ = 0xcbf29ce484222325ull;
};

// Ranks that are processes read each a file of their own host.
inline bool needs_fingerprint(const RunOptions& options) {
  return options.checkpoints.directory || how_started().launcher != Launcher::alone;
}

// The contents of a file, of a large one 64 pieces of a MiB from its beginning to its end. Empty where it cannot be
// read, which whoever reads the data says better.
inline std::string fingerprint_of(const std::filesystem::path& path) {
  constexpr std::uint64_t piece = std::uint64_t{1} << 20, pieces = 64;
  std::ifstream file(path, std::ios::binary);
  std::error_code error;
  const std::uint64_t size = std::filesystem::file_size(path, error);
  if (!file || error) return {};
  Fingerprint fingerprint;
  std::vector<char> bytes(piece);
  const std::uint64_t apart = std::max(piece, size / pieces);
  for (std::uint64_t begin = 0; begin < size; begin += apart) {
    file.seekg(static_cast<std::streamoff>(begin));
    file.read(bytes.data(), static_cast<std::streamsize>(std::min(piece, size - begin)));
    fingerprint.add(std::as_bytes(std::span(bytes).first(static_cast<std::size_t>(file.gcount()))));
  }
  return fingerprint.text();
}

}  // namespace tessera::trainer
