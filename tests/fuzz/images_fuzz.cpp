// The files of data sets of images: the first byte says which kind the rest is.
#include "vision/src/images/image_files.hpp"

#include "fuzz.hpp"

using namespace tessera::vision;

void fuzz::read_input(std::string_view input) {
  if (input.empty()) return;
  const std::size_t kind = static_cast<unsigned char>(input.front()) % 4;
  const Octets content(input.begin() + 1, input.end());
  if (kind < 2) {
    const std::size_t dimensions = kind == 0 ? 3 : 1;
    const Idx idx = parse_idx(content, "images", dimensions, 8 * content.size());
    std::size_t elements = 1;
    for (const std::size_t size : idx.sizes) elements *= size;
    require(idx.sizes.size() == dimensions && elements == idx.elements.size(), "sizes and elements differ");
    return;
  }
  const CifarFormat format{.labels = kind - 1, .classes = kind == 2 ? 10u : 100u};
  CifarImages images;
  parse_cifar(content, "images", format, images);
  require(images.pixels.size() == images.labels.size() * cifar_side * cifar_side * cifar_channels,
          "labels and images differ");
  for (const std::int32_t label : images.labels) {
    require(label >= 0 && static_cast<std::size_t>(label) < format.classes, "a label that is no class");
  }
}
