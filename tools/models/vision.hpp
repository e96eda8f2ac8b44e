// The networks of examples/train_vision, by the units and parameters that they themselves name.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

#include "models/model.hpp"
#include "tessera/base/bytes.hpp"
#include "tessera/plan/strategy.hpp"
#include "train_vision/shape.hpp"

namespace models {

// As it was published: of its width, for red, green and blue images of so many pixels' height and width, and so many
// classes. Null for other names. Throws UsageError where the model cannot have such images.
std::optional<examples::VisionShape> find_vision(std::string_view name, std::size_t side, std::size_t classes);

Model vision(const examples::VisionShape& shape);

// What a rank's passes over micro-batches of `batch` images need, counted by train_vision's own passes: on a CPU, the
// memory of its library's convolutions included.
tessera::Bytes vision_activations(const examples::VisionShape& shape, const tessera::Precision& precision,
                                  std::size_t batch);

}  // namespace models
