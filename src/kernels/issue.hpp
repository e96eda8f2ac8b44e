// How kernels reach the device of a stream: a task that computes, on the CPU, or one that enqueues to the CUDA stream.
#pragma once

#include <utility>

#include "tessera/device/cuda.hpp"
#include "tessera/device/stream.hpp"

namespace tessera::kernels {

inline bool on_cuda(const Stream& stream) { return stream.device().kind() == DeviceKind::cuda; }

// function(native), in the stream's order, `native` being its cudaStream_t.
template <typename Function>
void issue(Stream& stream, Function function) {
  stream.submit([native = native_stream(stream), function = std::move(function)] { function(native); });
}

}  // namespace tessera::kernels
