// Tensors over several safetensors files, as the Hugging Face libraries split them: model-00001-of-00003.safetensors
// and so on, and model.safetensors.index.json, which says in which file each tensor is:
//   {"metadata": {"total_size": bytes}, "weight_map": {"tensor": "file", …}}
#pragma once

#include <cstddef>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/bytes.hpp"

#pragma GCC visibility push(default)

namespace tessera {

inline constexpr Bytes split_limit{5'000'000'000};  // of the tensors in one file; a tensor itself is never split

// For each file the place of its first tensor: as many tensors, in their order, as together are within the limit, or
// one that is above it. One file, of nothing, where there are no tensors.
std::vector<std::size_t> split_tensors(std::span<const Bytes> sizes, Bytes limit = split_limit);

std::string tensor_file_name(std::string_view stem);   // "model.safetensors", where there is one file
std::string tensor_index_name(std::string_view stem);  // "model.safetensors.index.json", where there are more
// "model-00001-of-00003.safetensors" is file 0 of 3. Throws UsageError for 0 or more than 99,999 files.
std::string tensor_file_name(std::string_view stem, std::size_t file, std::size_t files);

struct TensorIndex {
  Bytes total_size = Bytes(0);                 // of all tensors
  std::map<std::string, std::string> files{};  // tensor → name of its file, in the index's folder
  friend bool operator==(const TensorIndex&, const TensorIndex&) = default;
};

inline constexpr Bytes tensor_index_limit{100'000'000};  // a longer one is refused

std::string compose(const TensorIndex& index);  // throws UsageError for names that are not UTF-8, or too long together

// A new file of it, which is on the device then. Throws as compose(), and DataError that begins with the path.
void write_tensor_index(const std::filesystem::path& path, const TensorIndex& index);

// Throws DataError, which begins with the path, for anything else than such an index; other metadata is skipped.
TensorIndex parse_tensor_index(std::string_view text, const std::filesystem::path& path);

}  // namespace tessera

#pragma GCC visibility pop
