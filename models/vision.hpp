// The networks of models/vision, by the units and parameters that they themselves name.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>
#include <vector>

#include "models/model.hpp"
#include "models/vision/model.hpp"
#include "models/vision/shape.hpp"
#include "tessera/base/bytes.hpp"
#include "tessera/plan/strategy.hpp"

namespace models {

// A choice is the images' side and classes, and a width: 0 stands for that with which the model was published.
struct VisionChoice {
  std::size_t side;          // pixels of an image's height and width
  std::size_t channels = 3;  // red, green and blue
  std::size_t classes = 1000;
  std::size_t width = 0;
};
// Null for names of other models. Throws UsageError where the model cannot have such images.
std::optional<VisionShape> find_vision(std::string_view name, const VisionChoice& choice);

// Units save what stages leave to their backward windows (VisionShape::stages_save) of batches of so many images.
Model vision(const VisionShape& shape, const tessera::Precision& precision = {}, std::size_t batch = 0);

// Returns what a rank's passes over micro-batches of `batch` images need, counted by train_vision's own passes: on a
// CPU, the memory of its library's convolutions included.
tessera::Bytes vision_activations(const VisionShape& shape, const tessera::Precision& precision, std::size_t batch);

// The windows of a micro-batch of so many images, and what train_vision's own pass counts in each.
std::vector<CountedWindow> vision_work(const VisionShape& shape, const tessera::Precision& precision,
                                       std::size_t batch);

}  // namespace models
