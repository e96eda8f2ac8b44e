// Names and usual sizes of the models.
#include "models/vision/shape.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "tessera/base/error.hpp"

namespace models {

std::string_view to_string(VisionModelKind kind) {
  switch (kind) {
    case VisionModelKind::cnn: return "cnn";
    case VisionModelKind::resnet18: return "resnet18";
    case VisionModelKind::resnet50: return "resnet50";
    case VisionModelKind::vit_s: return "vit-s";
    case VisionModelKind::vit_b: return "vit-b";
    case VisionModelKind::vit_l: return "vit-l";
  }
  throw tessera::InternalError("a vision model that is none");
}

std::size_t usual_width(VisionModelKind kind) {
  switch (kind) {
    case VisionModelKind::cnn: return 32;
    case VisionModelKind::resnet18:
    case VisionModelKind::resnet50: return 64;
    case VisionModelKind::vit_s: return 384;
    case VisionModelKind::vit_b: return 768;
    case VisionModelKind::vit_l: return 1024;
  }
  throw tessera::InternalError("a vision model that is none");
}

bool is_transformer(VisionModelKind kind) {
  return kind == VisionModelKind::vit_s || kind == VisionModelKind::vit_b || kind == VisionModelKind::vit_l;
}

std::size_t transformer_layers(VisionModelKind kind) { return kind == VisionModelKind::vit_l ? 24 : 12; }

bool has_batch_norms(VisionModelKind kind) {
  return kind == VisionModelKind::resnet18 || kind == VisionModelKind::resnet50;
}

TransformerDepth transformer_depth(const VisionShape& shape) {
  constexpr std::size_t head = 64;
  const TransformerDepth depth{.layers = transformer_layers(shape.kind),
                               .heads = std::max<std::size_t>(1, shape.width / head),
                               .patch = keeps_size(shape) ? std::size_t{4} : std::size_t{16}};
  if (shape.width % depth.heads != 0) {
    throw tessera::UsageError(fmt::format("{}: a width of {} cannot be divided among {} heads: take a multiple of {}",
                                          to_string(shape.kind), shape.width, depth.heads, head));
  }
  if (shape.image.height % depth.patch != 0 || shape.image.width % depth.patch != 0) {
    throw tessera::UsageError(fmt::format("{}: images of {} x {} cannot be cut into patches of {} x {}",
                                          to_string(shape.kind), shape.image.height, shape.image.width, depth.patch,
                                          depth.patch));
  }
  return depth;
}

std::string in_words(const VisionShape& shape) {
  return fmt::format("{}, width {}{}: {} x {} x {} -> {}", to_string(shape.kind), shape.width,
                     shape.synchronised_norms ? ", synchronised batch norms" : "", shape.image.height,
                     shape.image.width, shape.image.channels, shape.classes);
}

bool can_be_counted(const VisionShape& shape, std::size_t batch) {
  const std::size_t pixels = shape.image.height * shape.image.width;  // limits of options: at most 2^24
  return batch <= most_image_numbers / (pixels * std::max(shape.width, shape.image.channels));
}

bool keeps_size(const VisionShape& shape) { return std::max(shape.image.height, shape.image.width) <= 64; }

}  // namespace models
