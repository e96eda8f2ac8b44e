// How layers reach the device of a stream: a task that computes, on the CPU, or one that enqueues to the CUDA stream.
#pragma once

#include <string>
#include <type_traits>
#include <utility>

#include "tessera/base/error.hpp"
#include "tessera/device/cuda.hpp"
#include "tessera/device/stream.hpp"

namespace tessera::nn {

inline bool on_cuda(const Stream& stream) { return stream.device().kind() == DeviceKind::cuda; }

// function(native), in the stream's order, `native` being its cudaStream_t. Throws UnavailableError for T = double.
template <typename T, typename Function>
void issue(Stream& stream, const char* layer, Function function) {
  if constexpr (std::is_same_v<T, double>) {
    throw UnavailableError(std::string(layer) + ": elements of type double are for the CPU alone; use float, bf16 or " +
                           "fp16 on " + to_string(stream.device()));
  } else {
    stream.submit([native = native_stream(stream), function = std::move(function)] { function(native); });
  }
}

}  // namespace tessera::nn
