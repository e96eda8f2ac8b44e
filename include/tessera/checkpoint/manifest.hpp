// manifest.json, the file that makes a folder a checkpoint: it is written last, and names every other file with its
// size and the CRC32C of each of its blocks. Byte by byte: docs/checkpoint_format.md.
// Errors: DataError; the text begins with the path.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/bytes.hpp"
#include "tessera/plan/checkpoint_memory.hpp"

#pragma GCC visibility push(default)

namespace tessera {

inline constexpr std::string_view manifest_name = "manifest.json";
using plan::checkpoint_block;                                  // files are checked, and written, in blocks of it
inline constexpr std::uint64_t checkpoint_format_version = 1;  // of manifests, and with them of checkpoints
inline constexpr Bytes manifest_limit{100'000'000};            // a longer one is refused

struct ManifestFile {
  std::string name;  // ASCII letters, digits and "._-", the first of them no dot; not manifest.json
  Bytes size;
  std::vector<std::uint32_t> blocks = {};  // CRC32C of each block in turn; the last one may be short
  friend bool operator==(const ManifestFile&, const ManifestFile&) = default;
};

struct Manifest {
  std::uint64_t step = 0;
  std::vector<ManifestFile> files = {};  // sorted by name, each once
  friend bool operator==(const Manifest&, const Manifest&) = default;
};

std::uint64_t block_count(Bytes file_size);

// No manifest of so many files that have so many blocks together is longer.
Bytes longest_manifest(std::size_t files, std::uint64_t blocks);

// The text of the file. Throws UsageError where the manifest is not as above.
std::string compose(const Manifest& manifest);

// The inverse. Throws DataError for anything that compose() does not write: damage first, which the text's own checksum
// shows, then a format that this version does not read.
Manifest parse_manifest(std::string_view text, const std::filesystem::path& path);

// Reads a folder's manifest. Throws DataError also where it has none.
Manifest read_manifest(const std::filesystem::path& folder);

}  // namespace tessera

#pragma GCC visibility pop
