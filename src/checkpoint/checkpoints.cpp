// Which checkpoints a folder has: names first, then manifests, from the latest down.
#include "tessera/checkpoint/checkpoints.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <system_error>

#include "checkpoint/checked_file.hpp"
#include "checkpoint/checkpoint_directory.hpp"
#include "tessera/base/error.hpp"

namespace tessera {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view prefix = "step-";
constexpr std::uint64_t any_step = std::numeric_limits<std::uint64_t>::max();
using checkpoint::unfinished_suffix;

std::string fault_of(const fs::path& checkpoint) {
  try {
    check_checkpoint(checkpoint);
    return {};
  } catch (const DataError& error) {
    return error.what();
  }
}

// Names of a folder for which `wanted` holds; none where the folder does not exist.
template <typename Wanted>
std::vector<fs::path> names_in(const fs::path& folder, Wanted wanted) {
  std::error_code error;
  std::vector<fs::path> names;
  fs::directory_iterator entry(folder, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    if (wanted(entry->path().filename().string())) names.push_back(entry->path());
  }
  if (error && error != std::errc::no_such_file_or_directory) {
    throw DataError(fmt::format("{}: cannot be listed: {}", folder.string(), error.message()));
  }
  return names;
}

// Ascending, and not looked into.
std::vector<FoundCheckpoint> named_checkpoints(const fs::path& folder) {
  std::vector<FoundCheckpoint> found;
  for (const fs::path& path :
       names_in(folder, [](const std::string& name) { return checkpoint_step(name).has_value(); })) {
    found.push_back({.step = *checkpoint_step(path.filename().string()), .path = path});
  }
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.step < b.step; });
  return found;
}

bool is_unfinished(const std::string& name) {
  return name.ends_with(unfinished_suffix) && checkpoint_step(name.substr(0, name.size() - unfinished_suffix.size()));
}

void check_file(const fs::path& checkpoint, const ManifestFile& file) {
  const std::string fault = checkpoint::CheckedFile(checkpoint, file).size_fault();
  if (!fault.empty()) throw DataError(fault);
}

}  // namespace

std::string checkpoint_name(std::uint64_t step) { return fmt::format("{}{:08}", prefix, step); }

std::optional<std::uint64_t> checkpoint_step(std::string_view folder_name) {
  if (!folder_name.starts_with(prefix)) return std::nullopt;
  std::uint64_t step = 0;
  const std::string_view digits = folder_name.substr(prefix.size());
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), step);
  if (error != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
  return checkpoint_name(step) == folder_name ? std::optional(step) : std::nullopt;
}

Manifest read_checkpoint_manifest(const fs::path& checkpoint) {
  // "DIR/step-00000100/" has its name before the last stroke.
  const std::string name = (checkpoint.has_filename() ? checkpoint : checkpoint.parent_path()).filename().string();
  if (is_unfinished(name))
    throw DataError(fmt::format("{}: is a checkpoint that was not finished", checkpoint.string()));
  Manifest manifest = read_manifest(checkpoint);
  const auto step = checkpoint_step(name);
  if (step && *step != manifest.step) {
    throw DataError(fmt::format("{}: is the manifest of step {}, in the folder of step {}",
                                (checkpoint / manifest_name).string(), manifest.step, *step));
  }
  return manifest;
}

Manifest check_checkpoint(const fs::path& checkpoint) {
  Manifest manifest = read_checkpoint_manifest(checkpoint);
  for (const ManifestFile& file : manifest.files) check_file(checkpoint, file);
  return manifest;
}

std::vector<FoundCheckpoint> list_checkpoints(const fs::path& folder) {
  std::vector<FoundCheckpoint> found = named_checkpoints(folder);
  for (FoundCheckpoint& each : found) each.fault = fault_of(each.path);
  return found;
}

std::vector<fs::path> unfinished_checkpoints(const fs::path& folder) {
  std::vector<fs::path> names = names_in(folder, is_unfinished);
  std::sort(names.begin(), names.end());
  return names;
}

std::optional<FoundCheckpoint> latest_checkpoint(const fs::path& folder) {
  const std::vector<FoundCheckpoint> found = named_checkpoints(folder);
  const auto latest =
      std::find_if(found.rbegin(), found.rend(), [](const auto& each) { return fault_of(each.path).empty(); });
  return latest == found.rend() ? std::nullopt : std::optional(*latest);
}

std::optional<FoundCheckpoint> newest_checkpoint(const fs::path& folder) {
  return checkpoint::newest_below(folder, any_step);
}

std::optional<FoundCheckpoint> checkpoint::newest_below(const fs::path& folder, std::uint64_t below) {
  std::vector<FoundCheckpoint> found = named_checkpoints(folder);
  std::erase_if(found, [&](const FoundCheckpoint& each) { return below != any_step && each.step >= below; });
  if (found.empty()) return std::nullopt;
  const std::string fault = fault_of(found.back().path);
  if (fault.empty()) return found.back();
  throw DataError(
      fmt::format("{}; it belongs to the newest checkpoint{} in {}, which therefore cannot be used: mend it, or "
                  "read it with a Tessera that can, or move it away to use an older one",
                  fault, below == any_step ? "" : fmt::format(" below step {}", below), folder.string()));
}

fs::path find_checkpoint(const fs::path& path) {
  std::error_code error;
  if (!fs::is_directory(path, error)) throw DataError(fmt::format("{}: is no folder", path.string()));
  if (fs::exists(path / manifest_name, error)) return path;
  if (const auto newest = newest_checkpoint(path)) return newest->path;
  throw DataError(fmt::format("{}: is no checkpoint (it has no {}), and has none", path.string(), manifest_name));
}

}  // namespace tessera
