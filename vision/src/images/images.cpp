// Images in memory, and the data sets that are made of files.
#include "tessera/vision/images.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <utility>

#include "tessera/base/error.hpp"
#include "tessera/data/open_file.hpp"
#include "vision/src/images/image_files.hpp"

namespace tessera::vision {

namespace {

namespace fs = std::filesystem;

Octets read_octets(const fs::path& path) {
  const std::string content = data::read_whole_file(path, "a file of images");
  return {content.begin(), content.end()};
}

// Reads the file as it is, or compressed under the same name with .gz.
Idx read_idx(const fs::path& plain, std::size_t dimensions) {
  fs::path path = plain;
  if (!fs::exists(data::examined(path))) path += ".gz";
  if (!fs::exists(data::examined(path))) refuse_file(plain, "there is no such file, nor one with .gz");
  return parse_idx(read_octets(path), path, dimensions);
}

void add_cifar_file(const fs::path& path, const CifarFormat& format, CifarImages& images) {
  parse_cifar(read_octets(path), path, format, images);
}

// One name in each line that is not empty; numbers where there is no such file.
std::vector<std::string> class_names(const fs::path& path, std::size_t classes) {
  std::vector<std::string> names;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    while (!line.empty() && (line.back() == '\r' || line.back() == ' ')) line.pop_back();
    if (!line.empty()) names.push_back(line);
  }
  if (file.is_open() && !names.empty() && names.size() != classes) {
    refuse_file(path, fmt::format("names {} classes, but there are {}", names.size(), classes));
  }
  for (std::size_t i = names.size(); i < classes; ++i) names.push_back(std::to_string(i));
  return names;
}

ImageSet image_set(std::vector<std::string> names, CifarImages images) {
  return {
      {cifar_side, cifar_side, cifar_channels}, std::move(names), std::move(images.pixels), std::move(images.labels)};
}

}  // namespace

ImageSet::ImageSet(ImageExtents extents, std::vector<std::string> classes, std::vector<std::uint8_t> pixels,
                   std::vector<std::int32_t> labels)
    : extents_(extents), classes_(std::move(classes)), pixels_(std::move(pixels)), labels_(std::move(labels)) {
  if (pixels_.size() != extents_.elements() * labels_.size()) {
    throw UsageError(fmt::format("ImageSet: {} bytes do not make {} images of {} x {} x {}", pixels_.size(),
                                 labels_.size(), extents_.height, extents_.width, extents_.channels));
  }
  for (std::size_t i = 0; i < labels_.size(); ++i) {
    if (labels_[i] < 0 || static_cast<std::size_t>(labels_[i]) >= classes_.size()) {
      throw UsageError(fmt::format("ImageSet: the label of image {} is {}, but there are {} classes", i, labels_[i],
                                   classes_.size()));
    }
  }
}

void ImageSet::read_image(std::size_t index, std::span<std::uint8_t> pixels, std::int32_t& label) const {
  if (index >= size()) throw UsageError(fmt::format("image {} was asked for, but there are {}", index, size()));
  if (pixels.size() != extents_.elements()) {
    throw UsageError(
        fmt::format("an image has {} bytes, but room for {} was given", extents_.elements(), pixels.size()));
  }
  std::copy_n(pixels_.begin() + static_cast<std::ptrdiff_t>(index * pixels.size()), pixels.size(), pixels.begin());
  label = labels_[index];
}

ImageSet read_mnist(const fs::path& directory, ImagePart part, std::vector<std::string> classes) {
  const std::string prefix = part == ImagePart::training ? "train" : "t10k";
  Idx images = read_idx(directory / (prefix + "-images-idx3-ubyte"), 3);
  const Idx labels = read_idx(directory / (prefix + "-labels-idx1-ubyte"), 1);
  if (images.sizes[0] != labels.sizes[0]) {
    refuse_file(images.path, fmt::format("has {} images, and {} has {} labels", images.sizes[0], labels.path.string(),
                                         labels.sizes[0]));
  }
  if (images.elements.empty()) refuse_file(images.path, "has no images");
  std::vector<std::int32_t> numbers;
  numbers.reserve(labels.elements.size());
  for (std::size_t i = 0; i < labels.elements.size(); ++i) {
    numbers.push_back(checked_label(labels.elements[i], classes.size(), i, labels.path));
  }
  return {{images.sizes[1], images.sizes[2], 1}, std::move(classes), std::move(images.elements), std::move(numbers)};
}

std::vector<std::string> digit_classes() { return {"0", "1", "2", "3", "4", "5", "6", "7", "8", "9"}; }

std::vector<std::string> fashion_classes() {
  return {"T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"};
}

ImageSet read_cifar10(const fs::path& directory, ImagePart part) {
  constexpr CifarFormat format{.labels = 1, .classes = 10};
  CifarImages images;
  if (part == ImagePart::held_out) {
    add_cifar_file(directory / "test_batch.bin", format, images);
  } else {
    for (std::size_t batch = 1;
         batch == 1 || fs::exists(data::examined(directory / fmt::format("data_batch_{}.bin", batch))); ++batch) {
      add_cifar_file(directory / fmt::format("data_batch_{}.bin", batch), format, images);
    }
  }
  return image_set(class_names(directory / "batches.meta.txt", format.classes), std::move(images));
}

ImageSet read_cifar100(const fs::path& directory, ImagePart part) {
  constexpr CifarFormat format{.labels = 2, .classes = 100};
  CifarImages images;
  add_cifar_file(directory / (part == ImagePart::training ? "train.bin" : "test.bin"), format, images);
  return image_set(class_names(directory / "fine_label_names.txt", format.classes), std::move(images));
}

}  // namespace tessera::vision
