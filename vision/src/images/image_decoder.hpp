// From the bytes of a JPEG or PNG file to pixels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace tessera::vision {

struct Picture {
  std::size_t height = 0;
  std::size_t width = 0;
  std::vector<std::uint8_t> pixels;  // [height, width, 3]: red, green, blue
};

// Throws UnavailableError, which says what to install, where the build has no libjpeg or libpng.
void require_decoder();

inline constexpr std::size_t most_pixels = std::size_t{1} << 28;

// Fills `picture`, whose memory is used again. Throws DataError, which begins with the path, for what is neither a JPEG
// nor a PNG file, is damaged, cut off, or has more than `most` pixels.
void decode(std::span<const std::uint8_t> content, const std::string& path, Picture& picture,
            std::size_t most = most_pixels);

}  // namespace tessera::vision
