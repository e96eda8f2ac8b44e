// Elements of the emulated device's matrices, one by one.
#pragma once

#include <cstddef>

#include "src/rows/row_table.hpp"
#include "tessera/base/half.hpp"

namespace tessera::nn::cuda {

inline float get(Format format, const void* data, std::size_t i) {
  if (format == Format::fp32) return static_cast<const float*>(data)[i];
  if (format == Format::bf16) return static_cast<float>(static_cast<const bf16*>(data)[i]);
  return static_cast<float>(static_cast<const fp16*>(data)[i]);
}

inline void set(Format format, void* data, std::size_t i, float value) {
  if (format == Format::fp32) static_cast<float*>(data)[i] = value;
  if (format == Format::bf16) static_cast<bf16*>(data)[i] = bf16(value);
  if (format == Format::fp16) static_cast<fp16*>(data)[i] = fp16(value);
}

}  // namespace tessera::nn::cuda
