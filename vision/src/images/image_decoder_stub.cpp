// A build without libjpeg or libpng.
#include "tessera/base/error.hpp"
#include "vision/src/images/image_decoder.hpp"

namespace tessera::vision {

void require_decoder() {
  throw UnavailableError(
      "this build reads no JPEG and PNG files: install libjpeg and libpng (Debian: libjpeg62-turbo-dev libpng-dev) and "
      "configure it again");
}

void decode(std::span<const std::uint8_t>, const std::string&, Picture&, std::size_t) { require_decoder(); }

}  // namespace tessera::vision
