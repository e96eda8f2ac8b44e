// Instantiates templates for every element type: INSTANTIATE(T) is a macro of the source file's.
#pragma once

#include "tessera/base/half.hpp"

#define TESSERA_FOR_EACH_ELEMENT(INSTANTIATE) \
  INSTANTIATE(float)                          \
  INSTANTIATE(double)                         \
  INSTANTIATE(::tessera::bf16)                \
  INSTANTIATE(::tessera::fp16)
