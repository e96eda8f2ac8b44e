// Elements of any format as sixteen lanes of the type of arithmetic. Half precision is converted with integer
// operations, with the bits of base/half.hpp.
#pragma once

#include "src/rows/lanes.hpp"
#include "src/rows/row_table.hpp"

namespace tessera::nn {

// A set is a type that says how many floats one of its registers holds.
template <typename Set>
using Floats = typename LanesOf<float, Set::floats>::type;
template <typename Set>
using Doubles = typename LanesOf<double, Set::floats / 2>::type;
template <typename Set>
using Words = typename LanesOf<std::uint32_t, Set::floats>::type;
template <typename Set>
using Halves = typename LanesOf<std::uint16_t, Set::floats>::type;  // of a register each

template <typename Set, Format format>
using Values = std::conditional_t<format == Format::fp64, Doubles<Set>, Floats<Set>>;
template <Format format>
inline constexpr Format arithmetic_format = format == Format::fp64 ? Format::fp64 : Format::fp32;
template <Format format>
using Real = std::conditional_t<format == Format::fp64, double, float>;
template <Format format>
using Stored = std::conditional_t<format == Format::fp64, double,
                                  std::conditional_t<format == Format::fp32, float, std::uint16_t>>;

// Below every number: what a search for the largest starts from.
template <Format format>
inline constexpr Real<format> lowest = format == Format::fp64 ? static_cast<Real<format>>(-__DBL_MAX__)
                                                              : static_cast<Real<format>>(-__FLT_MAX__);

template <typename Set>
[[gnu::always_inline]] inline Words<Set> words(std::uint32_t value) {
  return all<Words<Set>>(value);
}

template <typename Set>
[[gnu::always_inline]] inline Words<Set> bf16_of(const Floats<Set>& value) {
  const auto bits = bits_as<Words<Set>>(value);
  const auto nearest = bits + ((bits >> 16) & words<Set>(1)) + words<Set>(0x7fff);
  const auto nan = words<Set>(0x7f800000) < (bits & words<Set>(0x7fffffff));
  return select(nan, bits | words<Set>(0x400000), nearest) >> 16;
}

template <typename Set>
[[gnu::always_inline]] inline Words<Set> fp16_of(const Floats<Set>& value) {
  const auto bits = bits_as<Words<Set>>(value);
  const auto magnitude = bits & words<Set>(0x7fffffff);
  const auto nan = words<Set>(0x7e00) | ((magnitude >> 13) & words<Set>(0x3ff));
  const auto half = all<Floats<Set>>(0.5f);  // its last place is the subnormals' unit, 2^-24
  const auto subnormal = bits_as<Words<Set>>(bits_as<Floats<Set>>(magnitude) + half) - words<Set>(0x3f000000);
  const auto rebiased = magnitude - words<Set>(112u << 23);
  const auto normal = (rebiased + words<Set>(0xfff) + ((rebiased >> 13) & words<Set>(1))) >> 13;
  auto result = select(magnitude < words<Set>(0x38800000), subnormal, normal);
  result = select(words<Set>(0x477fefff) < magnitude, words<Set>(0x7c00), result);
  result = select(words<Set>(0x7f800000) < magnitude, nan, result);
  return result | ((bits >> 16) & words<Set>(0x8000));
}

template <typename Set>
[[gnu::always_inline]] inline Floats<Set> of_fp16(const Words<Set>& bits) {
  const auto magnitude = (bits & words<Set>(0x7fff)) << 13;
  const auto normal = magnitude + words<Set>(112u << 23);
  const auto least = all<Floats<Set>>(0x1p-14f);
  const auto subnormal = bits_as<Words<Set>>(bits_as<Floats<Set>>(magnitude + words<Set>(113u << 23)) - least);
  auto result = select(magnitude < words<Set>(1u << 23), subnormal, normal);
  const auto quiet = select(words<Set>(31u << 23) < magnitude, words<Set>(0x7fc00000), words<Set>(0x7f800000));
  result = select(words<Set>((31u << 23) - 1) < magnitude, quiet | magnitude, result);
  return bits_as<Floats<Set>>(result | ((bits & words<Set>(0x8000)) << 16));
}

template <typename Set, Format format>
[[gnu::always_inline]] inline Values<Set, format> read_whole(const void* from) {
  if constexpr (format == Format::fp32 || format == Format::fp64) {
    return load_lanes<Values<Set, format>>(from);
  } else {
    const auto bits = converted<Words<Set>>(load_lanes<Halves<Set>>(from));
    if constexpr (format == Format::bf16) return bits_as<Floats<Set>>(bits << 16);
    if constexpr (format == Format::fp16) return of_fp16<Set>(bits);
  }
}

template <typename Set, Format format>
[[gnu::always_inline]] inline void write_whole(void* to, const Values<Set, format>& value) {
  if constexpr (format == Format::fp32 || format == Format::fp64) store_lanes(to, value);
  if constexpr (format == Format::bf16) store_lanes(to, converted<Halves<Set>>(bf16_of<Set>(value)));
  if constexpr (format == Format::fp16) store_lanes(to, converted<Halves<Set>>(fp16_of<Set>(value)));
}

// The elements data[at], … data[at + n - 1], then zeros; 1 <= n. All sixteen when n is as many or more.
template <typename Set, Format format>
[[gnu::always_inline]] inline Values<Set, format> read(const void* data, std::size_t at, std::size_t n) {
  const auto* const from = static_cast<const Stored<format>*>(data) + at;
  if (n >= lane_count) [[likely]] {
    return read_whole<Set, format>(from);
  }
  Stored<format> padded[lane_count] = {};
  __builtin_memcpy(padded, from, n * sizeof(Stored<format>));
  return read_whole<Set, format>(padded);
}

// Writes data[at], … data[at + n - 1], sixteen at most.
template <typename Set, Format format>
[[gnu::always_inline]] inline void write(void* data, std::size_t at, std::size_t n, const Values<Set, format>& value) {
  auto* const to = static_cast<Stored<format>*>(data) + at;
  if (n >= lane_count) [[likely]] {
    return write_whole<Set, format>(to, value);
  }
  Stored<format> padded[lane_count];
  write_whole<Set, format>(padded, value);
  __builtin_memcpy(to, padded, n * sizeof(Stored<format>));
}

// value in the first n lanes, `rest` in the others.
template <typename Set, Format format>
[[gnu::always_inline]] inline Values<Set, format> first_lanes(std::size_t n, const Values<Set, format>& value,
                                                              Real<format> rest) {
  static constexpr Real<format> index[lane_count] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  using V = Values<Set, format>;
  const auto count = static_cast<Real<format>>(n < lane_count ? n : lane_count);
  return select(load_lanes<V>(index) < all<V>(count), value, all<V>(rest));
}

// call.operator()<format>() for a format that is known only when it runs.
template <typename Call>
[[gnu::always_inline]] inline void by_format(Format format, Call call) {
  switch (format) {
    case Format::fp32: return call.template operator()<Format::fp32>();
    case Format::fp64: return call.template operator()<Format::fp64>();
    case Format::bf16: return call.template operator()<Format::bf16>();
    case Format::fp16: return call.template operator()<Format::fp16>();
  }
}

template <Format format>
[[gnu::always_inline]] inline const Stored<format>* row_of(const void* data, std::size_t row, std::size_t dim) {
  return static_cast<const Stored<format>*>(data) + row * dim;
}
template <Format format>
[[gnu::always_inline]] inline Stored<format>* row_of(void* data, std::size_t row, std::size_t dim) {
  return static_cast<Stored<format>*>(data) + row * dim;
}

[[gnu::always_inline]] inline float square_root(float x) { return __builtin_sqrtf(x); }
[[gnu::always_inline]] inline double square_root(double x) { return __builtin_sqrt(x); }
[[gnu::always_inline]] inline float logarithm(float x) { return __builtin_logf(x); }
[[gnu::always_inline]] inline double logarithm(double x) { return __builtin_log(x); }

}  // namespace tessera::nn
