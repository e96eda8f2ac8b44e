// A folder of checkpoints: DIR/step-00000100/, one for each step that was saved. What is being written, or being
// removed, has a name that ends in ".tmp" and is none.
// Blocks on the file system; reads manifests and sizes, and no tensors.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/checkpoint/manifest.hpp"

#pragma GCC visibility push(default)

namespace tessera {

std::string checkpoint_name(std::uint64_t step);                             // "step-00000100": eight digits, or more
std::optional<std::uint64_t> checkpoint_step(std::string_view folder_name);  // the inverse; nothing for other names

struct FoundCheckpoint {
  std::uint64_t step = 0;
  std::filesystem::path path = {};
  std::string fault = {};  // why it is none, beginning with a path; empty: it is valid
  bool valid() const { return fault.empty(); }
};

// The manifest of a checkpoint. Throws DataError where there is none, where it is of another step than the folder's
// name says, and where the checkpoint is not finished: "step-….tmp". The folder may have any other name.
Manifest read_checkpoint_manifest(const std::filesystem::path& checkpoint);

// The same, and all files are there with their sizes.
Manifest check_checkpoint(const std::filesystem::path& checkpoint);

// Ascending by step, those that are not valid too. A folder that does not exist has none. Throws DataError where it
// cannot be listed.
std::vector<FoundCheckpoint> list_checkpoints(const std::filesystem::path& folder);

// The names "step-….tmp" of a folder, sorted: what a job is writing, or was when it ended.
std::vector<std::filesystem::path> unfinished_checkpoints(const std::filesystem::path& folder);

// The valid one of the highest step, if there is any.
std::optional<FoundCheckpoint> latest_checkpoint(const std::filesystem::path& folder);

// The one of the highest step, if there is any. Throws DataError where it is not valid: who meant it is not given an
// older one, or none, without a word.
std::optional<FoundCheckpoint> newest_checkpoint(const std::filesystem::path& folder);

// A checkpoint itself (a folder with a manifest), or else the newest of a folder of checkpoints. Throws DataError where
// there is neither, or the newest is not valid.
std::filesystem::path find_checkpoint(const std::filesystem::path& path);

}  // namespace tessera

#pragma GCC visibility pop
