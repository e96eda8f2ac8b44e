// Conversions of 16-bit floats, against a reference that knows only what each pattern is worth (in double) and what
// "to nearest, ties to even" means.
#include "tessera/base/half.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

using tessera::bf16;
using tessera::fp16;

namespace {

struct Layout {
  int exponent_bits;
  int mantissa_bits;
  int bias() const { return (1 << (exponent_bits - 1)) - 1; }
  std::uint16_t infinity() const { return static_cast<std::uint16_t>(((1 << exponent_bits) - 1) << mantissa_bits); }
};

template <typename Half>
constexpr Layout layout = {8, 7};
template <>
constexpr Layout layout<fp16> = {5, 10};

template <typename Half>
Half from_bits(std::uint32_t bits) {
  Half half;
  half.bits = static_cast<std::uint16_t>(bits);
  return half;
}

// Returns the value of a pattern without sign; infinity has the value of the power of two that comes next.
template <typename Half>
double worth(std::uint32_t magnitude) {
  constexpr Layout l = layout<Half>;
  const int exponent = static_cast<int>(magnitude >> l.mantissa_bits);
  const int mantissa = static_cast<int>(magnitude & ((1u << l.mantissa_bits) - 1));
  const int whole = exponent == 0 ? mantissa : mantissa + (1 << l.mantissa_bits);
  return std::ldexp(whole, std::max(exponent, 1) - l.bias() - l.mantissa_bits);
}

template <typename Half>
const std::vector<double>& worths() {
  static const std::vector<double> all = [] {
    std::vector<double> values;
    for (std::uint32_t bits = 0; bits <= layout<Half>.infinity(); ++bits) values.push_back(worth<Half>(bits));
    return values;
  }();
  return all;
}

template <typename Half>
std::uint16_t nearest_even(float value) {
  const std::vector<double>& all = worths<Half>();
  const std::uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const double magnitude = std::fabs(static_cast<double>(value));
  if (magnitude >= all.back()) return static_cast<std::uint16_t>(sign | layout<Half>.infinity());
  const auto above = std::upper_bound(all.begin(), all.end(), magnitude);
  const auto high = static_cast<std::uint32_t>(above - all.begin());
  const std::uint32_t low = high - 1;
  const double down = magnitude - all[low];
  const double up = all[high] - magnitude;
  const std::uint32_t nearest = down < up ? low : up < down ? high : low % 2 == 0 ? low : high;
  return static_cast<std::uint16_t>(sign | nearest);
}

// Counts the values, and those next to them, whose conversion differs from the reference's.
template <typename Half>
int wrong_conversions(float value) {
  int wrong = 0;
  for (float near :
       {std::nextafter(value, -1.0f), value, std::nextafter(value, std::numeric_limits<float>::infinity())}) {
    for (float x : {near, -near}) wrong += !std::isnan(x) && Half(x).bits != nearest_even<Half>(x);
  }
  return wrong;
}

}  // namespace

TEST_CASE_TEMPLATE("every pattern is worth what its format says, and comes back from float unchanged", Half, bf16,
                   fp16) {
  int wrong_worth = 0, wrong_return = 0, wrong_nan = 0;
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = static_cast<float>(from_bits<Half>(bits));
    const std::uint32_t magnitude = bits & 0x7fff;
    if (magnitude > layout<Half>.infinity()) {
      const std::uint32_t quiet = 1u << (layout<Half>.mantissa_bits - 1);
      wrong_nan += !std::isnan(value) || Half(value).bits != (bits | quiet);
      continue;
    }
    wrong_return += Half(value).bits != bits;
    const double expected = magnitude == layout<Half>.infinity() ? HUGE_VAL : worth<Half>(magnitude);
    wrong_worth += static_cast<double>(value) != (bits & 0x8000 ? -expected : expected) ||
                   std::signbit(value) != (bits >> 15 != 0);
  }
  CHECK(wrong_worth == 0);
  CHECK(wrong_return == 0);
  CHECK(wrong_nan == 0);
}

TEST_CASE_TEMPLATE("floats at and between any two neighbours round to nearest even", Half, bf16, fp16) {
  const std::vector<double>& all = worths<Half>();
  int wrong = 0;
  for (std::size_t k = 0; k + 1 < all.size(); ++k) {
    wrong += wrong_conversions<Half>(static_cast<float>(all[k]));
    wrong += wrong_conversions<Half>(static_cast<float>((all[k] + all[k + 1]) / 2));
  }
  CHECK(wrong == 0);
}

TEST_CASE_TEMPLATE("floats over the whole range round to nearest even", Half, bf16, fp16) {
  int wrong = 0;
  for (std::uint64_t bits = 0; bits < 0x1'0000'0000; bits += 4099) {
    const auto value = std::bit_cast<float>(static_cast<std::uint32_t>(bits));
    wrong += !std::isnan(value) && Half(value).bits != nearest_even<Half>(value);
  }
  CHECK(wrong == 0);
}

TEST_CASE("overflow gives infinity, underflow zero, and both keep the sign") {
  CHECK(fp16(65519.0f).bits == 0x7bff);
  CHECK(fp16(65520.0f).bits == 0x7c00);
  CHECK(fp16(-1e30f).bits == 0xfc00);
  CHECK(fp16(0x1p-25f).bits == 0x0000);
  CHECK(fp16(std::nextafter(0x1p-25f, 1.0f)).bits == 0x0001);
  CHECK(fp16(-1e-30f).bits == 0x8000);
  CHECK(bf16(std::numeric_limits<float>::max()).bits == 0x7f80);
  CHECK(bf16(-std::numeric_limits<float>::infinity()).bits == 0xff80);
  CHECK(bf16(-0.0f).bits == 0x8000);
}

TEST_CASE("a NaN stays one with its sign, and is quiet, even where its payload is cut off") {
  const auto signalling = std::bit_cast<float>(0x7f800001u);
  CHECK(bf16(signalling).bits == 0x7fc0);
  CHECK(fp16(signalling).bits == 0x7e00);
  const auto negative = std::bit_cast<float>(0xffffffffu);
  CHECK(bf16(negative).bits == 0xffff);
  CHECK(fp16(negative).bits == 0xffff);
}
