// Elementwise kernels, enqueued on the streams of any device.
#include "tessera/kernels/elementwise.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "device/cuda/cuda_queue.hpp"
#include "kernels/coded_block.hpp"
#include "kernels/cuda/cuda_table.hpp"
#include "kernels/dispatch.hpp"

namespace tessera::kernels {

static_assert(coded_elements == block_of(DType::int8) && Bytes(coded_bytes) == size_of(DType::int8));

namespace {

void fill_bytes(Stream& stream, void* data, int value, Bytes size) {
  if (size == Bytes(0)) return;
  if (on_cuda(stream)) {
    stream.submit([&queue = device::cuda_queue(stream), data, value, size] { queue.fill(data, value, size); });
  } else {
    stream.submit([=] { std::memset(data, value, size.count()); });
  }
}

// `to` and `from` do not overlap.
void copy_bytes(Stream& stream, void* to, const void* from, Bytes size) {
  if (on_cuda(stream)) {
    stream.submit([&queue = device::cuda_queue(stream), to, from, size] { queue.copy(to, from, size); });
  } else {
    stream.submit([=] { std::memcpy(to, from, size.count()); });
  }
}

// How one type becomes another one.
struct CastWay {
  void (*KernelTable::*on_cpu)(const CastArguments&);
  void (*on_cuda)(void* native, const CastArguments&);
};
const CastWay& way_of(DType to, DType from) {
  static constexpr CastWay between{&KernelTable::cast, cuda::cast}, encode{&KernelTable::encode, cuda::encode},
      decode{&KernelTable::decode, cuda::decode};
  return to == DType::int8 ? encode : from == DType::int8 ? decode : between;
}

}  // namespace

void cast(Stream& stream, Target to, Source from, std::size_t count) {
  if (count == 0 || (to.type == from.type && to.data == from.data)) return;
  for (const DType type : {to.type, from.type}) {
    if (count % block_of(type) == 0) continue;
    throw UsageError(fmt::format("a cast of {} elements is not of whole blocks of {}", count, to_string(type)));
  }
  if (to.type == from.type) return copy_bytes(stream, to.data, from.data, bytes_of(to.type, count));
  const CastWay& way = way_of(to.type, from.type);
  const auto format = [](DType type) { return type == DType::int8 ? Format::fp32 : format_of(type); };
  const CastArguments arguments{to.data, format(to.type), from.data, format(from.type), count};
  if (on_cuda(stream)) return issue(stream, [arguments, &way](void* native) { way.on_cuda(native, arguments); });
  stream.submit([arguments, run = active_table().*way.on_cpu] { run(arguments); });
}

void accumulate(Stream& stream, float* to, Source from, std::size_t count) {
  if (count == 0) return;
  const AccumulateArguments arguments{to, from.data, format_of(from.type), count};
  if (on_cuda(stream)) return issue(stream, [arguments](void* native) { cuda::accumulate(native, arguments); });
  stream.submit([arguments, size = size_of(from.type).count(), run = active_table().accumulate] {
    parallel::in_shares(shares_of_elements(arguments.count), [&](std::size_t begin, std::size_t end, std::size_t) {
      run({arguments.to + begin, static_cast<const std::byte*>(arguments.from) + begin * size, arguments.from_format,
           end - begin});
    });
  });
}

void divide(Stream& stream, float* data, float divisor, std::size_t count) {
  if (count == 0 || divisor == 1.0f) return;
  if (on_cuda(stream)) return issue(stream, [=](void* native) { cuda::divide(native, data, divisor, count); });
  stream.submit([=, run = active_table().divide] { run(data, divisor, count); });
}

void fill_zero(Stream& stream, void* data, Bytes size) { fill_bytes(stream, data, 0, size); }

void fill_negative_zero(Stream& stream, Target to, std::size_t count) {
  if (count == 0) return;
  const Format format = format_of(to.type);
  if (on_cuda(stream))
    return issue(stream, [=](void* native) { cuda::fill_negative_zero(native, to.data, format, count); });
  stream.submit([=] {
    if (format == Format::fp32) {
      std::fill_n(static_cast<float*>(to.data), count, -0.0f);
    } else {
      std::fill_n(static_cast<std::uint16_t*>(to.data), count, std::uint16_t{0x8000});
    }
  });
}

void poison(Stream& stream, void* data, Bytes size) { fill_bytes(stream, data, 0xff, size); }

void copy(Stream& stream, void* to, const void* from, Bytes size) {
  if (size > Bytes(0) && to != from) copy_bytes(stream, to, from, size);
}

void touch(Stream& stream, std::byte* first, std::byte* last, bool write) {
  if (on_cuda(stream)) return issue(stream, [=](void* native) { cuda::touch(native, first, last, write); });
  stream.submit([=] {
    for (volatile std::byte* place : {first, last}) {
      const std::byte value = *place;
      if (write) *place = value;
    }
  });
}

}  // namespace tessera::kernels
