// Order is everything here: contents reach the device before the manifest, the manifest before the folder's name.
#include "checkpoint/checkpoint_directory.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <system_error>
#include <vector>

#include "tessera/base/error.hpp"
#include "tessera/checkpoint/checkpoint_reader.hpp"

namespace tessera::checkpoint {

namespace {

// With what is missing above it. The names of all that were made are on the device, as far as folders may be read.
void make_directories(const std::filesystem::path& path) {
  std::error_code error;
  std::vector<std::filesystem::path> missing;
  for (std::filesystem::path each = path; !each.empty() && !std::filesystem::exists(each, error);
       each = each.parent_path()) {
    missing.push_back(each);
  }
  std::filesystem::create_directories(path, error);
  if (error) throw DataError(fmt::format("{}: cannot be made: {}", path.string(), error.message()));
  for (const std::filesystem::path& made : missing) {
    const std::filesystem::path above = made.has_parent_path() ? made.parent_path() : ".";
    if (::access(above.c_str(), R_OK) == 0) flush_folder(above);
  }
}

void remove(const std::filesystem::path& path, const Pause& pause) {
  std::error_code error;
  std::filesystem::remove(path, error);
  if (error) throw DataError(fmt::format("{}: cannot be removed: {}", path.string(), error.message()));
  pause();
}

// File by file, because each may take long where it is large.
void remove_tree(const std::filesystem::path& path, const Pause& pause) {
  std::error_code error;
  if (std::filesystem::symlink_status(path, error).type() == std::filesystem::file_type::directory) {
    std::vector<std::filesystem::path> entries;
    for (std::filesystem::directory_iterator entry(path, error), end; !error && entry != end; entry.increment(error)) {
      entries.push_back(entry->path());
    }
    if (error) throw DataError(fmt::format("{}: cannot be removed: {}", path.string(), error.message()));
    for (const std::filesystem::path& entry : entries) remove_tree(entry, pause);
  }
  remove(path, pause);
}

File lock(const std::filesystem::path& path) {
  make_directories(path);
  try {
    return File::lock(path / ".lock");
  } catch (const DataError& error) {
    throw DataError(fmt::format("{}: no checkpoints can be written here: {}", path.string(), error.what()));
  }
}

}  // namespace

CheckpointDirectory::CheckpointDirectory(std::filesystem::path path, const Pause& pause)
    : path_(std::move(path)), lock_(lock(path_)) {
  for (const std::filesystem::path& unfinished : unfinished_checkpoints(path_)) remove_tree(unfinished, pause);
}

std::filesystem::path CheckpointDirectory::finished(std::uint64_t step) const { return path_ / checkpoint_name(step); }
std::filesystem::path CheckpointDirectory::growing(std::uint64_t step) const { return unfinished_folder(path_, step); }

CheckpointDirectory::Standing CheckpointDirectory::standing(std::uint64_t step, const Pause& pause) const {
  const std::filesystem::path path = finished(step);
  std::error_code error;
  if (std::filesystem::symlink_status(path, error).type() == std::filesystem::file_type::not_found) return {};
  const std::vector<std::string> faults = verify_checkpoint(path, [&](Bytes, Bytes) { pause(); });
  if (!faults.empty()) return {.fault = faults.front()};
  return {.manifest = read_manifest(path)};
}

std::filesystem::path CheckpointDirectory::set_aside(std::uint64_t step) const {
  std::filesystem::path aside;
  std::error_code error;
  for (int number = 1;
       aside.empty() || std::filesystem::symlink_status(aside, error).type() != std::filesystem::file_type::not_found;
       ++number) {
    aside = (finished(step) += ".aside") += number == 1 ? "" : fmt::format("-{}", number);
  }
  if (::rename(finished(step).c_str(), aside.c_str()) != 0) fail(finished(step), "cannot be renamed");
  flush_folder(path_);
  return aside;
}

void CheckpointDirectory::begin(std::uint64_t step, const CheckpointFiles& files, const Pause& pause) {
  if (!lock_.still_has_its_name()) lock_ = lock(path_);
  const std::filesystem::path folder = growing(step);
  remove_tree(folder, pause);  // of a save that failed, where it could not be removed then
  std::error_code error;
  std::filesystem::create_directory(folder, error);
  if (error) throw DataError(fmt::format("{}: cannot be made: {}", folder.string(), error.message()));
  for (const LaidFile& file : files.tensors) File::create_new(folder / file.name).resize(file.size());
}

void CheckpointDirectory::commit(const Manifest& manifest) {
  const std::filesystem::path folder = growing(manifest.step);
  write_new_file(folder / manifest_name, compose(manifest));
  flush_folder(folder);
  const std::filesystem::path name = finished(manifest.step);
  if (::rename(folder.c_str(), name.c_str()) != 0) fail(name, "cannot be put in place");
  flush_folder(path_);
}

void CheckpointDirectory::abandon(std::uint64_t step) noexcept {
  std::error_code ignored;  // the failure that led here is what is reported
  std::filesystem::remove_all(growing(step), ignored);
}

// Renamed before they are removed, and the new names are on the device by then, so that what is half removed is never
// taken for whole.
void CheckpointDirectory::prune(std::uint64_t step, std::size_t keep, const Pause& pause) {
  if (keep == 0) return;
  std::vector<FoundCheckpoint> older = list_checkpoints(path_);
  std::erase_if(older, [&](const FoundCheckpoint& found) { return !found.valid() || found.step >= step; });
  if (older.size() < keep) return;
  older.resize(older.size() - (keep - 1));
  for (const FoundCheckpoint& each : older) {
    if (::rename(each.path.c_str(), growing(each.step).c_str()) != 0) fail(each.path, "cannot be renamed to remove it");
  }
  flush_folder(path_);
  for (const FoundCheckpoint& each : older) remove_tree(growing(each.step), pause);
}

}  // namespace tessera::checkpoint
