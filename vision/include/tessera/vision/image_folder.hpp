// Images as files in folders, one folder for each class: DIRECTORY/CLASS/FILE, as ImageNet's are kept. Files are JPEG
// or PNG; each is read and decoded when a batch wants it, by libjpeg and libpng, if the build found them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tessera/vision/images.hpp"

#pragma GCC visibility push(default)

namespace tessera::vision {

struct ImageFolderOptions {
  // The size is that of read_image()'s result: the file's image, scaled with an antialiasing triangle filter until it
  // covers this size, and cut to it around the middle. Grey becomes red, green and blue; what is transparent becomes
  // black.
  std::size_t height = 224;
  std::size_t width = 224;
  // Names of the classes, in the order of labels; empty: those of the folders, sorted. A folder of another name is a
  // DataError: labels of held-out images must be those that were trained.
  std::vector<std::string> classes = {};
};

class ImageFolder final : public ImageSource {
 public:
  // Lists the folders; reads no image. Throws DataError that begins with the path: no directory, no classes, a class
  // without images, a file whose name ends neither in .jpg, .jpeg nor .png (hidden files are left out);
  // UnavailableError where the build has no libjpeg or no libpng.
  explicit ImageFolder(const std::filesystem::path& directory, ImageFolderOptions options = {});
  ~ImageFolder() override;

  std::size_t size() const override;
  ImageExtents extents() const override { return {options_.height, options_.width, 3}; }
  const std::vector<std::string>& classes() const override { return options_.classes; }
  // DataError names the file: gone, another size or time than when it was listed, damaged, cut off, no image.
  void read_image(std::size_t index, std::span<std::uint8_t> pixels, std::int32_t& label) const override;

  const std::filesystem::path& path(std::size_t index) const;

 private:
  struct Entry;
  ImageFolderOptions options_;
  std::vector<Entry> entries_;
};

}  // namespace tessera::vision

#pragma GCC visibility pop
