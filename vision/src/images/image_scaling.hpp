// Pictures of any size become images of one: scaled until they cover it, and cut around the middle.
#pragma once

#include <cstdint>
#include <span>

#include "vision/src/images/image_decoder.hpp"

namespace tessera::vision {

// to: [height, width, 3]. The scaled picture's pixels are means over triangles that reach one pixel, or one scaled
// pixel where that is larger, to each side, so that nothing is skipped where pictures shrink.
void cover(const Picture& picture, std::size_t height, std::size_t width, std::span<std::uint8_t> to);

}  // namespace tessera::vision
