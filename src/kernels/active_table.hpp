// The kernels in use: those of the active instruction set.
#pragma once

#include "kernels/kernel_table.hpp"
#include "tessera/base/dtype.hpp"

namespace tessera::kernels {

const KernelTable& active_table();

constexpr Format format_of(DType type) {
  return type == DType::fp32 ? Format::fp32 : type == DType::bf16 ? Format::bf16 : Format::fp16;
}

}  // namespace tessera::kernels
