// The JSON header of a safetensors file: parsed with suspicion, and composed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/checkpoint/safetensors.hpp"

namespace tessera::checkpoint {

struct SafetensorsHeader {
  std::vector<StoredTensor> tensors;
  std::map<std::string, std::string> metadata;
};

// Throws UsageError where bytes [first, first + size) are not all the tensor's.
void require_inside(const StoredTensor& tensor, Bytes first, std::uint64_t size, const std::string& path);

// The header of a file of `file_size` bytes, with offsets from the file's beginning. `read` fills `to` with the bytes
// that stand from `place` on. Throws DataError whose text begins with `path`.
SafetensorsHeader read_header(std::uint64_t file_size, const std::string& path,
                              const std::function<void(std::uint64_t place, std::span<std::byte> to)>& read);

// The JSON, filled up with blanks so that the data behind it is aligned to 64 bytes in the file. Throws UsageError for
// what is not UTF-8, and for what read_header() refuses: names that are empty, given twice or "__metadata__", too many
// dimensions, a header over the limit.
std::string compose_header(std::span<const StoredTensor> tensors, const std::map<std::string, std::string>& metadata);

// Bytes of one element; 0 for a dtype that the format does not have.
std::size_t element_size(std::string_view dtype);
std::string_view stored_name(DType type);  // "F32", "BF16", "F16", "U8"

// A name from a file, fit for an error message: quoted, escaped, not too long.
std::string shown_name(std::string_view name);

// Aliases in a file's metadata: as Python's save_model() writes them, a name that shares a stored tensor is a key
// there, and the tensor's name its value. Metadata has other entries too; an alias is what names a tensor. `is_stored`:
// whether a name is a tensor's.
template <typename IsStored>
std::map<std::string, std::string> find_aliases(const std::map<std::string, std::string>& metadata,
                                                IsStored is_stored) {
  std::map<std::string, std::string> aliases;
  for (const auto& [name, stored] : metadata) {
    if (is_stored(stored) && !is_stored(name)) aliases.emplace(name, stored);
  }
  return aliases;
}

inline constexpr std::string_view metadata_key = "__metadata__";
inline constexpr std::size_t length_field = 8;  // bytes before the header

}  // namespace tessera::checkpoint
