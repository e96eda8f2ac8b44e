// The manifest. Its checksum would stop nearly every input at the door, so each is also read with the one it should
// have.
#include <fmt/format.h>

#include <span>

#include "checkpoint/checksum.hpp"
#include "fuzz.hpp"
#include "tessera/base/error.hpp"
#include "tessera/checkpoint/manifest.hpp"

using namespace tessera;

void fuzz::read_input(std::string_view input) {
  const std::uint32_t checksum = checkpoint::crc32c(std::as_bytes(std::span(input)));
  const std::string sealed =
      fmt::format("{}\"manifest_crc32c\": \"{}\"\n}}\n", input, checkpoint::to_hexadecimal(checksum));
  try {
    parse_manifest(input, "manifest.json");
  } catch (const DataError&) {
    // A text without a checksum is refused.
  }
  const Manifest manifest = parse_manifest(sealed, "manifest.json");
  require(parse_manifest(compose(manifest), "manifest.json") == manifest, "a manifest does not come back as it was");
}
