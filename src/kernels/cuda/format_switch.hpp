// From a format known at run time to one that a template can take.
#pragma once

#include <type_traits>

#include "kernels/kernel_table.hpp"

namespace tessera::kernels::cuda {

template <Format format>
using FormatConstant = std::integral_constant<Format, format>;

template <typename Function>
void for_format(Format format, const Function& function) {
  switch (format) {
    case Format::fp32: return function(FormatConstant<Format::fp32>{});
    case Format::bf16: return function(FormatConstant<Format::bf16>{});
    case Format::fp16: return function(FormatConstant<Format::fp16>{});
  }
}

}  // namespace tessera::kernels::cuda
