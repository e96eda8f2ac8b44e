// A build without libjpeg or libpng.
#include "data/image_decoder.hpp"
#include "tessera/base/error.hpp"

namespace tessera::data {

void require_decoder() {
  throw UnavailableError(
      "this build reads no JPEG and PNG files: install libjpeg and libpng (Debian: libjpeg62-turbo-dev libpng-dev) and "
      "configure it again");
}

void decode(std::span<const std::uint8_t>, const std::string&, Picture&, std::size_t) { require_decoder(); }

}  // namespace tessera::data
