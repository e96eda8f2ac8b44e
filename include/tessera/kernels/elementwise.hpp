// Elementwise kernels on raw memory. Each enqueues on `stream` and does not synchronise; pointers belong to the
// stream's device, counts are in elements, buffers may overlap only where stated, and a count of 0 is fine.
// Pointers need only the alignment of their element type; 64-byte aligned ones are fastest.
// Every instruction set gives the same bits: one rounding per operation as written, no contraction.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tessera/base/bytes.hpp"
#include "tessera/base/dtype.hpp"
#include "tessera/device/stream.hpp"

#pragma GCC visibility push(default)

namespace tessera::kernels {

struct Source {
  constexpr Source(const float* values) : data(values), type(DType::fp32) {}  // implicit
  constexpr Source(const void* values, DType of) : data(values), type(of) {}

  const void* data;
  DType type;
};
struct Target {
  void* data;
  DType type;
};

// to[i] = from[i], rounded to nearest even. Equal types copy bits. `to` may equal `from` when the types are equal. To
// or from int8 `count` is of whole blocks; other counts are a UsageError.
void cast(Stream& stream, Target to, Source from, std::size_t count);

// to[i] = to[i] + float(from[i]); `to` is fp32.
void accumulate(Stream& stream, float* to, Source from, std::size_t count);

// data[i] = data[i] / divisor (true division, correctly rounded; divisor 1 leaves the bits alone).
void divide(Stream& stream, float* data, float divisor, std::size_t count);

void fill_zero(Stream& stream, void* data, Bytes size);

// to[i] = -0, which added to anything leaves it as it is.
void fill_negative_zero(Stream& stream, Target to, std::size_t count);

// to[i] = from[i]; they do not overlap, and both must stay until the stream has got here. On a CUDA stream either may
// be memory of the host; where that is not pinned, the stream's issuing thread waits for the copy.
void copy(Stream& stream, void* to, const void* from, Bytes size);

// Reads the two bytes, and writes them back when `write`: a test mode that shows sanitizers which memory an operation
// owns.
void touch(Stream& stream, std::byte* first, std::byte* last, bool write);

// Every byte 0xFF: a NaN in each dtype, so that a reader of freed memory cannot miss it.
void poison(Stream& stream, void* data, Bytes size);

}  // namespace tessera::kernels

#pragma GCC visibility pop
