// A network of models/vision on images that are a formula, which compare_torch repeats.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "models/vision/model.hpp"
#include "step/loop.hpp"

namespace bench {

inline constexpr std::size_t image_channels = 3;
inline constexpr std::size_t image_classes = 10;

template <typename T, models::VisionModelKind kind>
class ImageSubject {
 public:
  ImageSubject(const StepOptions& options, int rank)
      : shape_{.kind = kind,
               .image = {options.side, options.side, image_channels},
               .classes = image_classes,
               .width = options.width},
        images_(options.batch),
        pixels_(images_ * shape_.image.elements()),
        labels_(images_),
        network_(shape_) {
    const std::size_t first = static_cast<std::size_t>(rank) * images_;
    const std::size_t columns = shape_.image.elements();
    for (std::size_t i = 0; i < images_; ++i) {
      labels_[i] = static_cast<std::int32_t>((first + i) % image_classes);
      for (std::size_t j = 0; j < columns; ++j) {
        pixels_[i * columns + j] = static_cast<float>(((first + i) * 131 + j * 31) % 257) / 128.0f - 1.0f;
      }
    }
  }

  tessera::Bytes activations() const { return models::VisionModel<T>::planned_activation_bytes(shape_, images_); }
  std::optional<tessera::plan::Program> program() const { return std::nullopt; }
  void add_to(tessera::FullyShard& model) { network_.add_to(model, images_); }
  void use(std::span<std::byte> memory) { network_.use(memory); }
  void train(tessera::FullyShard& model, float* loss) {
    network_.train(model, {pixels_.data(), images_, shape_.image.elements()},
                   {.targets = {.labels = labels_}, .loss = loss});
  }

 private:
  models::VisionShape shape_;
  std::size_t images_;
  std::vector<float> pixels_;
  std::vector<std::int32_t> labels_;
  models::VisionModel<T> network_;
};

}  // namespace bench
