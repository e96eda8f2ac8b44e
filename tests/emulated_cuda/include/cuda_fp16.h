// The part of CUDA's fp16 that Tessera uses, on the project's own type.
#pragma once

#include "tessera/base/half.hpp"

struct __half {
  tessera::fp16 stored;
};

inline float __half2float(__half value) { return static_cast<float>(value.stored); }
inline __half __float2half_rn(float value) { return {tessera::fp16(value)}; }
