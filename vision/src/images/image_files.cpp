// Sizes and labels are checked before anything is made of them.
#include "vision/src/images/image_files.hpp"

#include <fmt/format.h>
#include <isa-l/igzip_lib.h>

#include <limits>
#include <optional>

#include "tessera/base/error.hpp"

namespace tessera::vision {

namespace {

namespace fs = std::filesystem;

constexpr std::uint8_t octet_type = 8;  // of IDX's elements

bool is_compressed(const Octets& content) { return content.size() > 2 && content[0] == 0x1f && content[1] == 0x8b; }

Octets inflate(const Octets& compressed, const fs::path& path, std::size_t most) {
  if (compressed.size() > std::numeric_limits<std::uint32_t>::max())
    refuse_file(path, "is too large for a data set's file");
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
      refuse_file(path,
                  fmt::format("is damaged: what gzip made of it cannot be inflated beyond byte {}", content.size()));
    }
    if (content.size() > most) {
      refuse_file(path, fmt::format("inflates to more than {} bytes, which no such data set has", most));
    }
    if (inflated == 0 && state.avail_in == 0 && state.block_state != ISAL_BLOCK_FINISH) {
      refuse_file(path,
                  fmt::format("is cut off: its compressed data ends after {} bytes, in the middle", content.size()));
    }
  }
  return content;
}

std::size_t big_endian(const std::uint8_t* at) {
  return std::size_t{at[0]} << 24 | std::size_t{at[1]} << 16 | std::size_t{at[2]} << 8 | std::size_t{at[3]};
}

// Sizes of a damaged file may have a product beyond any number's range.
std::optional<std::size_t> product(const std::vector<std::size_t>& sizes) {
  std::size_t result = 1;
  for (const std::size_t size : sizes) {
    if (__builtin_mul_overflow(result, size, &result)) return std::nullopt;
  }
  return result;
}

}  // namespace

void refuse_file(const fs::path& path, const std::string& why) {
  throw DataError(fmt::format("{}: {}", path.string(), why));
}

std::int32_t checked_label(std::uint8_t label, std::size_t classes, std::size_t image, const fs::path& path) {
  if (label < classes) return label;
  refuse_file(path, fmt::format("image {} has the label {}, but there are {} classes", image, label, classes));
}

Idx parse_idx(Octets content, const fs::path& path, std::size_t dimensions, std::size_t most) {
  if (is_compressed(content)) content = inflate(content, path, most);
  const std::size_t header = 4 + 4 * dimensions;
  if (content.size() < header || content[0] != 0 || content[1] != 0 || content[2] != octet_type ||
      content[3] != dimensions) {
    refuse_file(path, fmt::format("does not begin as {} dimensions of bytes in the format of MNIST do", dimensions));
  }
  Idx result{.path = path, .sizes = {}, .elements = {}};
  for (std::size_t i = 0; i < dimensions; ++i) result.sizes.push_back(big_endian(&content[4 + 4 * i]));
  const std::optional<std::size_t> elements = product(result.sizes);
  if (!elements || *elements != content.size() - header) {
    refuse_file(
        path, fmt::format("says that {} bytes follow its header of {}, but {} do: it is cut off or damaged",
                          elements ? std::to_string(*elements) : "more than can be", header, content.size() - header));
  }
  result.elements.assign(content.begin() + static_cast<std::ptrdiff_t>(header), content.end());
  return result;
}

void parse_cifar(const Octets& content, const fs::path& path, const CifarFormat& format, CifarImages& images) {
  constexpr std::size_t cifar_pixels = cifar_side * cifar_side;
  const std::size_t record_size = format.labels + cifar_channels * cifar_pixels;
  if (content.empty()) refuse_file(path, "is empty");
  if (content.size() % record_size != 0) {
    refuse_file(path,
                fmt::format("ends in the middle of image {}: {} bytes are no multiple of {}; it is cut off, or a file "
                            "of another kind",
                            content.size() / record_size, content.size(), record_size));
  }
  for (std::size_t image = 0; image * record_size < content.size(); ++image) {
    const std::uint8_t* const record = content.data() + image * record_size;
    images.labels.push_back(checked_label(record[format.labels - 1], format.classes, image, path));
    const std::uint8_t* const planes = record + format.labels;
    for (std::size_t pixel = 0; pixel < cifar_pixels; ++pixel) {
      for (std::size_t c = 0; c < cifar_channels; ++c) images.pixels.push_back(planes[c * cifar_pixels + pixel]);
    }
  }
}

}  // namespace tessera::vision
