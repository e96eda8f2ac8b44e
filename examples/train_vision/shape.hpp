// Which models there are, and what one of them is in numbers.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "tessera/data/images.hpp"

namespace examples {

enum class VisionModelKind { cnn, resnet18, resnet50 };

std::string_view to_string(VisionModelKind kind);

struct VisionShape {
  VisionModelKind kind = VisionModelKind::cnn;
  tessera::ImageExtents image = {};
  std::size_t classes = 0;
  std::size_t width = 0;  // channels of the first stage
  float label_smoothing = 0.0f;
};

// Channels of the first stage as the models were published: 32, 64, 64.
std::size_t usual_width(VisionModelKind kind);

// Such as "resnet18, width 64: 28 x 28 x 1 -> 10".
std::string in_words(const VisionShape& shape);

// Whether the model's first stage keeps the size of images, which those of 64 pixels or less do, or halves it twice.
bool keeps_size(const VisionShape& shape);

}  // namespace examples
