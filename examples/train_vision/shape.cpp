// Names and usual sizes of the models.
#include "train_vision/shape.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "tessera/base/error.hpp"

namespace examples {

std::string_view to_string(VisionModelKind kind) {
  switch (kind) {
    case VisionModelKind::cnn: return "cnn";
    case VisionModelKind::resnet18: return "resnet18";
    case VisionModelKind::resnet50: return "resnet50";
  }
  throw tessera::InternalError("a vision model that is none");
}

std::size_t usual_width(VisionModelKind kind) { return kind == VisionModelKind::cnn ? 32 : 64; }

std::string in_words(const VisionShape& shape) {
  return fmt::format("{}, width {}: {} x {} x {} -> {}", to_string(shape.kind), shape.width, shape.image.height,
                     shape.image.width, shape.image.channels, shape.classes);
}

bool keeps_size(const VisionShape& shape) { return std::max(shape.image.height, shape.image.width) <= 64; }

}  // namespace examples
