// The part of CUDA's bf16 that Tessera uses, on the project's own type.
#pragma once

#include "tessera/base/half.hpp"

struct __nv_bfloat16 {
  tessera::bf16 stored;
};

inline float __bfloat162float(__nv_bfloat16 value) { return static_cast<float>(value.stored); }
inline __nv_bfloat16 __float2bfloat16_rn(float value) { return {tessera::bf16(value)}; }
