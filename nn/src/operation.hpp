// The layers' operations share these: shapes that fit each other, the way to the device of a stream, the type of
// arithmetic, and an instance for every type of elements.
#pragma once

#include <cstddef>
#include <string_view>
#include <type_traits>
#include <utility>

#include "tessera/base/half.hpp"
#include "tessera/device/cuda.hpp"
#include "tessera/device/stream.hpp"
#include "tessera/nn/element.hpp"
#include "tessera/nn/view.hpp"

// INSTANTIATE(T) is a macro of the source file's.
#define TESSERA_FOR_EACH_ELEMENT(INSTANTIATE) \
  INSTANTIATE(float)                          \
  INSTANTIATE(double)                         \
  INSTANTIATE(::tessera::bf16)                \
  INSTANTIATE(::tessera::fp16)

#pragma GCC visibility push(default)

namespace tessera::nn {

struct Extents {
  std::size_t rows;
  std::size_t columns;
};

// Throws UsageError, with both shapes, unless they are [rows, columns].
void require_extents(std::string_view what, Extents extents, std::size_t rows, std::size_t columns);

template <typename T>
void require_shape(std::string_view what, MatrixView<T> view, std::size_t rows, std::size_t columns) {
  require_extents(what, {view.rows, view.columns}, rows, columns);
}

// From stored elements to the type that layers calculate in, and back with one rounding to nearest even.
template <typename T>
Arithmetic<T> load(T element) {
  return static_cast<Arithmetic<T>>(element);
}
template <typename T>
T store(Arithmetic<T> value) {
  return static_cast<T>(value);
}

inline bool on_cuda(const Stream& stream) { return stream.device().kind() == DeviceKind::cuda; }

// Throws UnavailableError: elements of type double are for the CPU alone.
[[noreturn]] void refuse_doubles(std::string_view layer, const Stream& stream);

// Whether products of T may run in tf32 on CUDA devices: what allow_tf32() said, for floats.
bool tf32_allowed();
template <typename T>
bool products_in_tf32() {
  return std::is_same_v<T, float> && tf32_allowed();
}

// function(native), in the stream's order, `native` being its cudaStream_t. Throws UnavailableError for T = double.
template <typename T, typename Function>
void issue(Stream& stream, std::string_view layer, Function function) {
  if constexpr (std::is_same_v<T, double>) {
    refuse_doubles(layer, stream);
  } else {
    stream.submit([native = native_stream(stream), function = std::move(function)] { function(native); });
  }
}

}  // namespace tessera::nn

#pragma GCC visibility pop
