// The bytes of data sets' files are read here, apart from where they lie: so that any bytes at all can be tried.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace tessera::vision {

using Octets = std::vector<std::uint8_t>;

// Data sets of this kind inflate to some tens of megabytes; what goes on and on is a trap.
inline constexpr std::size_t most_inflated = std::size_t{1} << 32;

// A file of IDX: two bytes of zero, the type of an element, the number of dimensions, their sizes, the elements.
struct Idx {
  std::filesystem::path path;
  std::vector<std::size_t> sizes;
  Octets elements;
};

// `content` may be compressed by gzip. Throws DataError, which begins with the path, for what is none of bytes in so
// many dimensions.
Idx parse_idx(Octets content, const std::filesystem::path& path, std::size_t dimensions,
              std::size_t most = most_inflated);

// A file of CIFAR: records of `labels` bytes, of which the last counts, and an image plane by plane.
struct CifarFormat {
  std::size_t labels;
  std::size_t classes;
};
inline constexpr std::size_t cifar_side = 32;
inline constexpr std::size_t cifar_channels = 3;

struct CifarImages {
  Octets pixels;  // [images, side, side, channels]
  std::vector<std::int32_t> labels;
};

// Throws DataError as parse_idx does.
void parse_cifar(const Octets& content, const std::filesystem::path& path, const CifarFormat& format,
                 CifarImages& images);

// Throws DataError, which names the file and the image, for one that is no class.
std::int32_t checked_label(std::uint8_t label, std::size_t classes, std::size_t image,
                           const std::filesystem::path& path);

// Throws DataError that begins with the path.
[[noreturn]] void refuse_file(const std::filesystem::path& path, const std::string& why);

}  // namespace tessera::vision
