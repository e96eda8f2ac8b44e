// From a call to the device of its stream: on the CPU the kernels of the active instruction set, on a CUDA device a
// task that enqueues to its stream.
#pragma once

#include <utility>

#include "kernels/kernel_table.hpp"
#include "tessera/base/dtype.hpp"
#include "tessera/base/error.hpp"
#include "tessera/device/cuda.hpp"
#include "tessera/device/parallel.hpp"
#include "tessera/device/stream.hpp"

namespace tessera::kernels {

const KernelTable& active_table();
const KernelTable* find_avx2_table();    // null: not in this build, or not on this processor
const KernelTable* find_avx512_table();  // null: likewise

constexpr Format format_of(DType type) {
  if (type == DType::u8 || type == DType::int8)
    throw UsageError("kernels compute with fp32, bf16 and fp16, and were given u8 or int8");
  return type == DType::fp32 ? Format::fp32 : type == DType::bf16 ? Format::bf16 : Format::fp16;
}

// These shares are for operations that run on the stream that computes alone; those that may run beside it stay on one
// thread each.
inline parallel::Shares shares_of_elements(std::size_t count) {
  return {.count = count, .least = std::size_t{1} << 14, .unit = 64};
}

inline bool on_cuda(const Stream& stream) { return stream.device().kind() == DeviceKind::cuda; }

// function(native), in the stream's order, `native` being its cudaStream_t.
template <typename Function>
void issue(Stream& stream, Function function) {
  stream.submit([native = native_stream(stream), function = std::move(function)] { function(native); });
}

}  // namespace tessera::kernels
