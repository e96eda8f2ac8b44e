// Elementwise kernels, enqueued on CPU streams.
#include "tessera/kernels/elementwise.hpp"

#include <cstring>

#include "kernels/active_table.hpp"
#include "kernels/cpu_only.hpp"

namespace tessera::kernels {
namespace {

void fill_bytes(Stream& stream, void* data, int value, Bytes size) {
  if (size == Bytes(0)) return;
  stream.submit([=] { std::memset(data, value, size.count()); });
}

}  // namespace

void cast(Stream& stream, Target to, Source from, std::size_t count) {
  cpu_only(stream, "cast");
  if (count == 0 || (to.type == from.type && to.data == from.data)) return;
  if (to.type == from.type) {
    stream.submit([=] { std::memcpy(to.data, from.data, (count * size_of(to.type)).count()); });
    return;
  }
  const CastArguments arguments{to.data, format_of(to.type), from.data, format_of(from.type), count};
  stream.submit([arguments, run = active_table().cast] { run(arguments); });
}

void accumulate(Stream& stream, float* to, Source from, std::size_t count) {
  cpu_only(stream, "accumulate");
  if (count == 0) return;
  const AccumulateArguments arguments{to, from.data, format_of(from.type), count};
  stream.submit([arguments, run = active_table().accumulate] { run(arguments); });
}

void divide(Stream& stream, float* data, float divisor, std::size_t count) {
  cpu_only(stream, "divide");
  if (count == 0 || divisor == 1.0f) return;
  stream.submit([=, run = active_table().divide] { run(data, divisor, count); });
}

void fill_zero(Stream& stream, void* data, Bytes size) { fill_bytes(cpu_only(stream, "fill_zero"), data, 0, size); }

void poison(Stream& stream, void* data, Bytes size) { fill_bytes(cpu_only(stream, "poison"), data, 0xff, size); }

}  // namespace tessera::kernels
