// Files are listed once, with their sizes and times, so that one that changes while a run goes on is noticed.
#include "tessera/vision/image_folder.hpp"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cctype>
#include <system_error>
#include <utility>

#include "tessera/base/error.hpp"
#include "tessera/data/open_file.hpp"
#include "vision/src/images/image_decoder.hpp"
#include "vision/src/images/image_files.hpp"
#include "vision/src/images/image_scaling.hpp"

namespace tessera::vision {

namespace fs = std::filesystem;

// An Entry is a picture as it was when it was listed.
struct ImageFolder::Entry {
  fs::path path;
  std::int32_t label;
  std::uintmax_t size;
  fs::file_time_type time;
};

namespace {

bool is_hidden(const fs::path& path) { return path.filename().string().starts_with('.'); }

bool is_image(const fs::path& path) {
  std::string ending = path.extension().string();
  std::transform(ending.begin(), ending.end(), ending.begin(), [](unsigned char c) { return std::tolower(c); });
  return ending == ".jpg" || ending == ".jpeg" || ending == ".png";
}

// Lists a folder's contents in the order of names, without hidden things.
std::vector<fs::path> contents(const fs::path& directory) {
  std::error_code error;
  std::vector<fs::path> paths;
  for (fs::directory_iterator entry(directory, error), end; !error && entry != end; entry.increment(error)) {
    if (!is_hidden(entry->path())) paths.push_back(entry->path());
  }
  if (error) refuse_file(directory, "cannot be listed: " + error.message());
  std::sort(paths.begin(), paths.end());
  return paths;
}

std::vector<std::string> folder_names(const fs::path& directory) {
  std::vector<std::string> names;
  for (const fs::path& path : contents(directory)) {
    if (fs::is_directory(data::examined(path))) names.push_back(path.filename().string());
  }
  if (names.empty()) refuse_file(directory, "has no folders: images are looked for in one folder for each class");
  return names;
}

}  // namespace

ImageFolder::~ImageFolder() = default;

ImageFolder::ImageFolder(const fs::path& directory, ImageFolderOptions options) : options_(std::move(options)) {
  require_decoder();
  if (options_.height == 0 || options_.width == 0) throw UsageError("ImageFolder: images must have pixels");
  if (!fs::is_directory(data::examined(directory))) refuse_file(directory, "is no directory");
  const std::vector<std::string> names = folder_names(directory);
  if (options_.classes.empty()) options_.classes = names;
  for (const std::string& name : names) {
    const auto known = std::find(options_.classes.begin(), options_.classes.end(), name);
    if (known == options_.classes.end()) {
      refuse_file(directory / name, "is a class that is not among those that are trained");
    }
    const std::size_t before = entries_.size();
    for (const fs::path& path : contents(directory / name)) {
      if (!is_image(path)) refuse_file(path, "ends in none of .jpg, .jpeg and .png; take it out of the class's folder");
      std::error_code error;
      const Entry entry{path, static_cast<std::int32_t>(known - options_.classes.begin()), fs::file_size(path, error),
                        fs::last_write_time(path, error)};
      if (error) refuse_file(path, "cannot be read: " + error.message());
      entries_.push_back(entry);
    }
    if (entries_.size() == before) refuse_file(directory / name, "is a class without images");
  }
}

std::size_t ImageFolder::size() const { return entries_.size(); }

const fs::path& ImageFolder::path(std::size_t index) const { return entries_.at(index).path; }

void ImageFolder::read_image(std::size_t index, std::span<std::uint8_t> pixels, std::int32_t& label) const {
  if (index >= size()) throw UsageError(fmt::format("image {} was asked for, but there are {}", index, size()));
  if (pixels.size() != extents().elements()) {
    throw UsageError(
        fmt::format("an image has {} bytes, but room for {} was given", extents().elements(), pixels.size()));
  }
  const Entry& entry = entries_[index];
  const std::string content = data::read_whole_file(entry.path, "an image");
  std::error_code error;
  if (content.size() != entry.size || fs::last_write_time(entry.path, error) != entry.time || error) {
    refuse_file(entry.path, fmt::format("has changed since the folder was listed: it had {} bytes then, and has {}",
                                        entry.size, content.size()));
  }
  thread_local Picture picture;  // keeps its memory for the next image
  const auto* const bytes = reinterpret_cast<const std::uint8_t*>(content.data());
  decode({bytes, content.size()}, entry.path.string(), picture);
  cover(picture, options_.height, options_.width, pixels);
  label = entry.label;
}

}  // namespace tessera::vision
