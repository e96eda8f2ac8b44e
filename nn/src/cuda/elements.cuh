// Elements of device memory as floats, one by one and in packs of up to 16 bytes, and sums over a warp.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstddef>
#include <cstdint>
#include <stdexcept>

#include "src/rows/row_table.hpp"
#include "tessera/base/error.hpp"
#include "tessera/device/cuda_launch.cuh"

namespace tessera::nn::cuda {

using tessera::cuda::blocks_for;
using tessera::cuda::launch;

inline constexpr unsigned warp = 32;
inline constexpr unsigned whole_warp = 0xffffffffu;

__device__ inline float to_float(float value) { return value; }
__device__ inline float to_float(__nv_bfloat16 value) { return __bfloat162float(value); }
__device__ inline float to_float(__half value) { return __half2float(value); }

// Rounds to nearest even.
template <typename T>
__device__ inline T to_element(float value);
template <>
__device__ inline float to_element<float>(float value) {
  return value;
}
template <>
__device__ inline __nv_bfloat16 to_element<__nv_bfloat16>(float value) {
  return __float2bfloat16_rn(value);
}
template <>
__device__ inline __half to_element<__half>(float value) {
  return __float2half_rn(value);
}

template <typename T>
inline constexpr std::size_t pack_width = 16 / sizeof(T);

template <typename T, std::size_t width>
struct alignas(sizeof(T) * width) Pack {
  T element[width];
};

template <std::size_t width, typename T>
__device__ inline void load(const T* from, float (&values)[width]) {
  const auto pack = *reinterpret_cast<const Pack<T, width>*>(from);
#pragma unroll
  for (std::size_t k = 0; k < width; ++k) values[k] = to_float(pack.element[k]);
}

template <std::size_t width, typename T>
__device__ inline void store(T* to, const float (&values)[width]) {
  Pack<T, width> pack;
#pragma unroll
  for (std::size_t k = 0; k < width; ++k) pack.element[k] = to_element<T>(values[k]);
  *reinterpret_cast<Pack<T, width>*>(to) = pack;
}

// Whether packs of `width` elements can be read at every multiple of `width` behind the pointer; null can.
template <typename T>
bool packed(const void* data, std::size_t width = pack_width<T>) {
  return reinterpret_cast<std::uintptr_t>(data) % (sizeof(T) * width) == 0;
}

// Sums and maxima over a warp, in pairs at a fixed distance: every lane gets the same bits.
__device__ inline float warp_sum(float value) {
  for (int distance = 16; distance > 0; distance /= 2) value = value + __shfl_xor_sync(whole_warp, value, distance);
  return value;
}
__device__ inline double warp_sum(double value) {
  for (int distance = 16; distance > 0; distance /= 2) value = value + __shfl_xor_sync(whole_warp, value, distance);
  return value;
}
__device__ inline float warp_max(float value) {
  for (int distance = 16; distance > 0; distance /= 2) {
    value = fmaxf(value, __shfl_xor_sync(whole_warp, value, distance));
  }
  return value;
}

__device__ inline std::size_t thread_of_grid() {
  return static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}
__device__ inline std::size_t threads_of_grid() { return static_cast<std::size_t>(gridDim.x) * blockDim.x; }

template <typename T>
struct Type {
  using Element = T;
};

// function(Type<T>{}) for the elements of a format.
template <typename Function>
void for_element(Format format, const Function& function) {
  switch (format) {
    case Format::fp32: return function(Type<float>{});
    case Format::bf16: return function(Type<__nv_bfloat16>{});
    case Format::fp16: return function(Type<__half>{});
    case Format::fp64: break;
  }
  throw InternalError("a CUDA kernel was asked for elements of type double");
}

}  // namespace tessera::nn::cuda
