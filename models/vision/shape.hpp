// Which models there are, and what one of them is in numbers.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <string_view>

#include "tessera/vision/images.hpp"

namespace models {

enum class VisionModelKind { cnn, resnet18, resnet50, vit_s, vit_b, vit_l };

inline constexpr std::array vision_models = {VisionModelKind::cnn,      VisionModelKind::resnet18,
                                             VisionModelKind::resnet50, VisionModelKind::vit_s,
                                             VisionModelKind::vit_b,    VisionModelKind::vit_l};

std::string_view to_string(VisionModelKind kind);

struct VisionShape {
  VisionModelKind kind = VisionModelKind::cnn;
  tessera::vision::ImageExtents image = {};
  std::size_t classes = 0;
  std::size_t width = 0;  // channels of the first stage, or of a transformer's tokens
  float label_smoothing = 0.0f;
  bool synchronised_norms = false;  // batch norms are, over all ranks
  bool granule_norms = false;       // batch norms are of granules (vision::BatchNormOptions); not both
  // Units have memory for what stages leave to their backward windows, which may go to the host's in between
  // (Offload::activations).
  bool stages_save = false;
};

// This bounds the numbers of a micro-batch's widest layer at the size of its images. With more, bytes would not be
// counted in 64 bits.
inline constexpr std::size_t most_image_numbers = std::size_t{1} << 40;
bool can_be_counted(const VisionShape& shape, std::size_t batch);

// Returns the width with which the model was published: 32, 64, 64, 384, 768, 1024.
std::size_t usual_width(VisionModelKind kind);

// Such as "resnet18, width 64: 28 x 28 x 1 -> 10".
std::string in_words(const VisionShape& shape);

// A vision transformer has so many blocks, heads in each (of 64, as published), and patches of this side; the images'
// sides must be multiples of it.
struct TransformerDepth {
  std::size_t layers;
  std::size_t heads;
  std::size_t patch;
};
bool is_transformer(VisionModelKind kind);
std::size_t transformer_layers(VisionModelKind kind);
bool has_batch_norms(VisionModelKind kind);
// Throws UsageError where heads do not divide the width, or patches the image.
TransformerDepth transformer_depth(const VisionShape& shape);

// Whether the model's first stage keeps the size of images, which those of 64 pixels or less do, or halves it twice.
bool keeps_size(const VisionShape& shape);

}  // namespace models
