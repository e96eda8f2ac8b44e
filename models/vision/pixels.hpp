// The pixels of a micro-batch, in the type that layers compute with.
#pragma once

#include <type_traits>

#include "models/vision/shape.hpp"
#include "tessera/kernels/elementwise.hpp"
#include "tessera/nn/activation_stack.hpp"
#include "tessera/nn/view.hpp"
#include "tessera/shard/fully_shard.hpp"
#include "tessera/vision/image_view.hpp"

namespace models {

// Pushes them where that is not fp32. Model: a FullyShard, or one that only counts.
template <typename T, typename Model>
tessera::vision::ImageView<const T> pixels_as(Model& model, tessera::nn::ActivationStack& stack,
                                              const VisionShape& shape, tessera::nn::MatrixView<const float> pixels) {
  tessera::vision::ImageView<const T> x{nullptr, pixels.rows, shape.image.height, shape.image.width,
                                        shape.image.channels};
  if constexpr (std::is_same_v<T, float>) {
    x.data = pixels.data;
  } else {
    const auto converted = stack.push<T>(x.elements());
    x.data = converted.data();
    if constexpr (std::is_same_v<Model, tessera::FullyShard>) {
      tessera::kernels::cast(model.stream(), {converted.data(), tessera::dtype_of<T>},
                             {pixels.data, tessera::DType::fp32}, x.elements());
    }
  }
  return x;
}

}  // namespace models
