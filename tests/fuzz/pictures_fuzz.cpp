// JPEG and PNG files, scaled to a small image. Pictures are kept small, so that memory stays within the targets' rule:
// what libjpeg and libpng hold themselves is theirs.
#include "fuzz.hpp"
#include "vision/src/images/image_decoder.hpp"
#include "vision/src/images/image_scaling.hpp"

#include <cstdint>
#include <vector>

void fuzz::read_input(std::string_view input) {
  constexpr std::size_t most = 1 << 14;  // pixels
  const auto* const bytes = reinterpret_cast<const std::uint8_t*>(input.data());
  tessera::vision::Picture picture;
  tessera::vision::decode({bytes, input.size()}, "picture", picture, most);
  require(picture.pixels.size() == 3 * picture.height * picture.width, "pixels and size differ");
  require(picture.height > 0 && picture.width > 0 && picture.height * picture.width <= most,
          "a picture that is too large");
  std::vector<std::uint8_t> image(3 * 5 * 7);
  tessera::vision::cover(picture, 5, 7, image);
}
