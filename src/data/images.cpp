// Images in memory, and the readers of data sets' files: a file is read whole, inflated where it is compressed, and
// checked before anything is made of it.
#include "tessera/data/images.hpp"

#include <fmt/format.h>
#include <isa-l/igzip_lib.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <utility>

#include "data/whole_file.hpp"
#include "tessera/base/error.hpp"

namespace tessera {

namespace {

namespace fs = std::filesystem;
using Octets = std::vector<std::uint8_t>;

constexpr std::uint8_t octet_type = 8;  // of IDX's elements

[[noreturn]] void refuse(const fs::path& path, const std::string& why) {
  throw DataError(fmt::format("{}: {}", path.string(), why));
}

Octets read_octets(const fs::path& path) {
  const std::string content = data::read_whole_file(path, "a file of images");
  return {content.begin(), content.end()};
}

bool is_compressed(const Octets& content) { return content.size() > 2 && content[0] == 0x1f && content[1] == 0x8b; }

// Data sets of this kind inflate to some tens of megabytes; what goes on and on is a trap.
constexpr std::size_t most_inflated = std::size_t{1} << 32;

Octets inflate(const Octets& compressed, const fs::path& path) {
  if (compressed.size() > std::numeric_limits<std::uint32_t>::max()) refuse(path, "is too large for a data set's file");
  inflate_state state;
  isal_inflate_init(&state);
  state.crc_flag = ISAL_GZIP;
  state.next_in = const_cast<std::uint8_t*>(compressed.data());
  state.avail_in = static_cast<std::uint32_t>(compressed.size());
  Octets content;
  Octets part(1 << 18);
  while (state.block_state != ISAL_BLOCK_FINISH) {
    state.next_out = part.data();
    state.avail_out = static_cast<std::uint32_t>(part.size());
    const int status = isal_inflate(&state);
    const std::size_t inflated = part.size() - state.avail_out;
    content.insert(content.end(), part.begin(), part.begin() + static_cast<std::ptrdiff_t>(inflated));
    if (status != ISAL_DECOMP_OK) {
      refuse(path, fmt::format("is damaged: what gzip made of it cannot be inflated beyond byte {}", content.size()));
    }
    if (content.size() > most_inflated) refuse(path, "inflates to more than 4 GiB, which no such data set has");
    if (inflated == 0 && state.avail_in == 0 && state.block_state != ISAL_BLOCK_FINISH) {
      refuse(path, fmt::format("is cut off: its compressed data ends after {} bytes, in the middle", content.size()));
    }
  }
  return content;
}

// As it is, or compressed under the same name with .gz.
struct Found {
  fs::path path;
  Octets content;
};
Found read_either(const fs::path& plain) {
  fs::path path = plain;
  if (!fs::exists(path)) path += ".gz";
  if (!fs::exists(path)) {
    refuse(plain, "there is no such file, nor one with .gz");
  }
  Octets content = read_octets(path);
  if (is_compressed(content)) content = inflate(content, path);
  return {path, std::move(content)};
}

std::size_t big_endian(const std::uint8_t* at) {
  return std::size_t{at[0]} << 24 | std::size_t{at[1]} << 16 | std::size_t{at[2]} << 8 | std::size_t{at[3]};
}

// A file of IDX: two bytes of zero, the type of an element, the number of dimensions, their sizes, the elements.
struct Idx {
  fs::path path;
  std::vector<std::size_t> sizes;
  Octets elements;
};

// Sizes of a damaged file may have a product beyond any number's range.
std::optional<std::size_t> product(const std::vector<std::size_t>& sizes) {
  std::size_t result = 1;
  for (const std::size_t size : sizes) {
    if (__builtin_mul_overflow(result, size, &result)) return std::nullopt;
  }
  return result;
}

Idx read_idx(const fs::path& plain, std::size_t dimensions) {
  Found found = read_either(plain);
  const Octets& content = found.content;
  const std::size_t header = 4 + 4 * dimensions;
  if (content.size() < header || content[0] != 0 || content[1] != 0 || content[2] != octet_type ||
      content[3] != dimensions) {
    refuse(found.path, fmt::format("does not begin as {} dimensions of bytes in the format of MNIST do", dimensions));
  }
  Idx result{.path = found.path, .sizes = {}, .elements = {}};
  for (std::size_t i = 0; i < dimensions; ++i) result.sizes.push_back(big_endian(&content[4 + 4 * i]));
  const std::optional<std::size_t> elements = product(result.sizes);
  if (!elements || *elements != content.size() - header) {
    refuse(found.path,
           fmt::format("says that {} bytes follow its header of {}, but {} do: it is cut off or damaged",
                       elements ? std::to_string(*elements) : "more than can be", header, content.size() - header));
  }
  result.elements.assign(content.begin() + static_cast<std::ptrdiff_t>(header), content.end());
  return result;
}

std::int32_t checked_label(std::uint8_t label, std::size_t classes, std::size_t image, const fs::path& path) {
  if (label < classes) return label;
  refuse(path, fmt::format("image {} has the label {}, but there are {} classes", image, label, classes));
}

constexpr std::size_t cifar_side = 32;
constexpr std::size_t cifar_channels = 3;
constexpr std::size_t cifar_pixels = cifar_side * cifar_side;

// One file's records: `labels` bytes, of which the last counts, and the image plane by plane.
struct CifarFormat {
  std::size_t labels;
  std::size_t classes;
  std::size_t record() const { return labels + cifar_channels * cifar_pixels; }
};

struct CifarImages {
  Octets pixels;
  std::vector<std::int32_t> labels;
};

void add_cifar_file(const fs::path& path, const CifarFormat& format, CifarImages& images) {
  const Octets content = read_octets(path);
  if (content.empty()) refuse(path, "is empty");
  if (content.size() % format.record() != 0) {
    refuse(path, fmt::format("ends in the middle of image {}: {} bytes are no multiple of {}; it is cut off, or a file "
                             "of another kind",
                             content.size() / format.record(), content.size(), format.record()));
  }
  for (std::size_t image = 0; image * format.record() < content.size(); ++image) {
    const std::uint8_t* const record = content.data() + image * format.record();
    images.labels.push_back(checked_label(record[format.labels - 1], format.classes, image, path));
    const std::uint8_t* const planes = record + format.labels;
    for (std::size_t pixel = 0; pixel < cifar_pixels; ++pixel) {
      for (std::size_t c = 0; c < cifar_channels; ++c) images.pixels.push_back(planes[c * cifar_pixels + pixel]);
    }
  }
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
    refuse(path, fmt::format("names {} classes, but there are {}", names.size(), classes));
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
    refuse(images.path,
           fmt::format("has {} images, and {} has {} labels", images.sizes[0], labels.path.string(), labels.sizes[0]));
  }
  if (images.elements.empty()) refuse(images.path, "has no images");
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
    for (std::size_t batch = 1; batch == 1 || fs::exists(directory / fmt::format("data_batch_{}.bin", batch));
         ++batch) {
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

}  // namespace tessera
