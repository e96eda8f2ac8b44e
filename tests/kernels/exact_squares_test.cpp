// Exact sums of squares against integers of 640 bits, in every order and every cut.
#include "tessera/kernels/exact_squares.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <initializer_list>
#include <limits>

#include "cases.hpp"
#include "kernels/exact_arithmetic.hpp"
#include "tessera/kernels/norm.hpp"

using namespace tessera;
using namespace tessera::test;
using kernels::ExactSquares;

namespace {

// ---- the reference ----
//
// A square as a whole number of 2^-320, digits of 32 bits from the lowest on: digit j is that of bin j - 10.

constexpr int digits = 20;
constexpr int unit_exponent = -320;
using Number = std::array<std::uint32_t, digits>;

Number square_of(float x) {
  int exponent = 0;
  const auto mantissa = static_cast<std::uint64_t>(std::ldexp(std::frexp(std::fabs(x), &exponent), 24));
  std::uint64_t rest = mantissa * mantissa;
  Number result{};
  if (rest == 0) return result;
  int shift = 2 * (exponent - 24) - unit_exponent;
  for (; shift < 0; ++shift) rest /= 2;  // of a subnormal number, whose last bits are zeros
  for (std::size_t at = 0; at < 64; ++at) {
    const std::size_t place = at + static_cast<std::size_t>(shift);
    if ((rest >> at & 1) != 0) result[place / 32] |= 1u << place % 32;
  }
  return result;
}

// The top that a sum has whose largest square this is: the first digit, or the one above where that is 2^31 or more.
std::int64_t top_of(const Number& square) {
  for (int j = digits - 1; j >= 0; --j) {
    const std::uint32_t digit = square[static_cast<std::size_t>(j)];
    if (digit != 0) return j + 1 + (digit >> 31 != 0 ? 1 : 0);
  }
  return ExactSquares::none;
}

// Takes the digits from j on away, rounded to nearest, and leaves what is missing, with `negative` for its sign.
std::int64_t take_slice(Number& rest, bool& negative, std::int64_t j) {
  if (j < 0) return 0;
  const auto from = static_cast<std::size_t>(j);
  std::int64_t slice = rest[from];
  for (std::size_t i = from; i < digits; ++i) rest[i] = 0;
  const bool was_negative = negative;
  if (from > 0 && rest[from - 1] >> 31 != 0) {
    ++slice;
    negative = !negative;
    bool carry = true;  // 2^(32 j) less what is there
    for (std::size_t i = 0; i < from; ++i) {
      rest[i] = ~rest[i] + (carry ? 1 : 0);
      carry = carry && rest[i] == 0;
    }
  }
  return was_negative ? -slice : slice;
}

ExactSquares reference(std::span<const float> numbers) {
  ExactSquares sum{};
  for (const float x : numbers) {
    if (std::isnan(x)) sum.top = std::max(sum.top, ExactSquares::nan);
    if (std::isinf(x)) sum.top = std::max(sum.top, ExactSquares::infinite);
    if (std::isfinite(x)) sum.top = std::max(sum.top, top_of(square_of(x)));
  }
  if (sum.top == ExactSquares::none || sum.top >= ExactSquares::infinite) return sum;
  for (const float x : numbers) {
    Number rest = square_of(x);
    bool negative = false;
    for (int k = 0; k < 3; ++k) sum.bins[k] += take_slice(rest, negative, sum.top - 1 - k);
  }
  return sum;
}

// The whole sum, nothing dropped, rounded to more digits than fp64 has.
long double whole_sum(std::span<const float> numbers) {
  std::array<std::uint64_t, digits> sums{};
  for (const float x : numbers) {
    const Number square = square_of(x);
    for (std::size_t j = 0; j < digits; ++j) sums[j] += square[j];
  }
  long double sum = 0.0L;
  for (std::size_t j = digits; j-- > 0;) {
    sum += std::ldexp(static_cast<long double>(sums[j]), static_cast<int>(32 * j) + unit_exponent);
  }
  return sum;
}

// ---- the numbers ----

// Numbers of every exponent that fp32 has, subnormal ones and zeros of both signs too.
std::vector<float> of_all_exponents(std::size_t count, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<float> values(count);
  for (float& value : values) {
    const auto pattern = static_cast<std::uint32_t>(random());
    const bool finite = (pattern & 0x7f800000u) != 0x7f800000u;
    value =
        random() % 16 == 0 ? (pattern % 2 == 0 ? 0.0f : -0.0f) : std::bit_cast<float>(finite ? pattern : pattern >> 8);
  }
  return values;
}

// Numbers of a few exponents next to each other, so that all bins of a sum have much in them.
std::vector<float> of_near_exponents(std::size_t count, std::uint32_t seed, int largest) {
  std::mt19937 random(seed);
  std::vector<float> values(count);
  for (float& value : values) {
    const auto fraction = static_cast<std::uint32_t>(random()) & 0x007fffffu;
    const float one_to_two = std::bit_cast<float>(0x3f800000u | fraction);
    value = std::ldexp(one_to_two, largest - static_cast<int>(random() % 24));
  }
  return values;
}

std::vector<float> border_of(int bin) {  // the two numbers whose squares are next to 2^(32 bin - 1)
  const auto below = static_cast<float>(std::sqrt(std::ldexp(1.0, 32 * bin - 1)));
  const bool is_below = static_cast<double>(below) * static_cast<double>(below) < std::ldexp(1.0, 32 * bin - 1);
  return {is_below ? below : std::nextafter(below, 0.0f), is_below ? std::nextafter(below, HUGE_VALF) : below};
}

template <typename T>
ExactSquares exact_squares(const T* data, std::size_t count) {
  Stream stream = host_stream();
  ExactSquares result{-1, {}};
  kernels::exact_squares(stream, {data, dtype_of<T>}, count, &result);
  return result;
}
ExactSquares exact_squares(std::span<const float> data) { return exact_squares(data.data(), data.size()); }

// begin_update adds so what units and ranks have.
double value_of_all(std::span<const ExactSquares> parts) {
  kernels::ExactTotal total{};
  for (const ExactSquares& part : parts) kernels::add_exactly(total, part);
  return kernels::fp64_of(total);
}

bool same_bits(double a, double b) { return std::bit_cast<std::uint64_t>(a) == std::bit_cast<std::uint64_t>(b); }

}  // namespace

TEST_CASE("exact squares are the slices of every number, counted") {
  with_each_case([](std::size_t count, std::size_t shift) {
    for (const std::vector<float>& values :
         {numbers(count, 61), of_all_exponents(count, 62), of_near_exponents(count, 63, 9),
          of_near_exponents(count, 64, -118), of_near_exponents(count, 65, 127)}) {
      Buffer<float> data(values, shift);
      CHECK(exact_squares(data.data(), count) == reference(values));
    }
  });
}

TEST_CASE("exact squares beyond a chunk, whose parts have other tops, are those of all numbers") {
  with_each_instruction_set([] {
    std::vector<float> values;
    for (const int largest : {-60, -12, 20, 4, 36, -140, 35, 20}) {
      const std::vector<float> more = of_near_exponents(3000, static_cast<std::uint32_t>(largest + 200), largest);
      values.insert(values.end(), more.begin(), more.end());
      CHECK(exact_squares(values) == reference(values));
    }
    const std::vector<float> of_all = of_all_exponents(20'000, 5);
    CHECK(exact_squares(of_all) == reference(of_all));
  });
}

TEST_CASE("the largest square decides the bins, just below a border and just above it") {
  with_each_instruction_set([] {
    for (int bin = -9; bin <= 8; ++bin) {
      const std::vector<float> border = border_of(bin);
      const std::int64_t top = bin + ExactSquares::bin_zero;
      CAPTURE(bin);
      CHECK(exact_squares(std::span(border).first(1)).top == top - 1);
      CHECK(exact_squares(std::span(border).last(1)).top == top);
      CHECK(exact_squares(border) == reference(border));
      std::vector<float> many = of_near_exponents(500, static_cast<std::uint32_t>(bin + 50), 16 * bin - 1);
      many.insert(many.end(), border.begin(), border.end());
      CHECK(exact_squares(many) == reference(many));
    }
    const std::vector<float> smallest = {std::bit_cast<float>(1u)};
    CHECK(exact_squares(smallest) == ExactSquares{1, {1 << 22, 0, 0}});
    const std::vector<float> one = {-1.0f, 1.0f};
    CHECK(exact_squares(one) == ExactSquares{ExactSquares::bin_zero, {2, 0, 0}});
  });
}

TEST_CASE_TEMPLATE("exact squares of 16 bits are those of the same values in fp32", T, bf16, fp16) {
  Stream stream = host_stream();
  with_each_case([&](std::size_t count, std::size_t shift) {
    Buffer<T> halves(rounded<T>(of_near_exponents(count, 61, 15)), shift);
    std::vector<float> wide(count);
    kernels::cast(stream, {wide.data(), DType::fp32}, {halves.data(), dtype_of<T>}, count);
    CHECK(exact_squares(halves.data(), count) == reference(wide));
  });
}

TEST_CASE("neither order nor cuts change exact squares, nor their value") {
  std::mt19937 random(7);
  for (int seed = 0; seed < 20; ++seed) {
    std::vector<float> values = seed % 2 == 0
                                    ? of_all_exponents(5000, static_cast<std::uint32_t>(seed))
                                    : of_near_exponents(5000, static_cast<std::uint32_t>(seed), 6 * seed - 60);
    const ExactSquares expected = reference(values);
    for (int order = 0; order < 4; ++order) {
      std::shuffle(values.begin(), values.end(), random);
      std::vector<ExactSquares> parts;
      ExactSquares sum{};
      for (std::size_t at = 0; at < values.size();) {
        const std::size_t count = std::min<std::size_t>(random() % 900 * (random() % 4), values.size() - at);
        parts.push_back(exact_squares(values.data() + at, count));
        kernels::add(sum, parts.back());
        at += count;
      }
      CHECK(sum == expected);
      std::shuffle(parts.begin(), parts.end(), random);
      CHECK(same_bits(value_of_all(parts), kernels::value_of(expected)));
    }
  }
}

TEST_CASE("the value of exact squares is the sum of squares, but for the last places") {
  for (int seed = 0; seed < 30; ++seed) {
    const std::vector<float> values = seed % 2 == 0
                                          ? of_all_exponents(3000, static_cast<std::uint32_t>(seed))
                                          : of_near_exponents(3000, static_cast<std::uint32_t>(seed), 8 * seed - 120);
    const ExactSquares squares = exact_squares(values);
    const long double expected = whole_sum(values);
    const long double error = std::fabs(static_cast<long double>(kernels::value_of(squares)) - expected);
    CHECK(error <= expected * (0x1p-50L + 3000 * 0x1p-64L));
  }
  CHECK(same_bits(kernels::value_of({0, {}}), 0.0));
}

TEST_CASE("the test's numbers tell an exact sum from one of fp64 that depends on order") {
  std::vector<float> values = of_near_exponents(5000, 3, 9);
  const auto straight = [&] {
    double sum = 0.0;
    for (const float x : values) sum += static_cast<double>(x) * static_cast<double>(x);
    return sum;
  };
  const double before = straight();
  std::reverse(values.begin(), values.end());
  CHECK(before != straight());
}

TEST_CASE("what is not finite is seen in any order, and NaN before infinity") {
  with_each_instruction_set([] {
    for (std::size_t where : {0u, 15u, 16u, 1023u, 2047u, 2048u, 4099u}) {
      std::vector<float> data = of_near_exponents(4100, 71, 127);
      data[where] = -HUGE_VALF;
      CHECK(exact_squares(data) == ExactSquares{ExactSquares::infinite, {}});
      data[(where + 2048) % data.size()] = std::bit_cast<float>(0xff800001u);
      CHECK(exact_squares(data) == ExactSquares{ExactSquares::nan, {}});
    }
  });
  const ExactSquares infinite{ExactSquares::infinite, {}}, nan{ExactSquares::nan, {}}, huge{19, {1, 2, 3}};
  const auto value = [](std::initializer_list<ExactSquares> parts) {
    return value_of_all({parts.begin(), parts.size()});
  };
  CHECK(std::isinf(value({infinite, huge})));
  CHECK(std::isinf(value({huge, infinite, infinite})));
  CHECK(std::isnan(value({nan, infinite})));
  CHECK(std::isnan(value({infinite, huge, nan})));
}

TEST_CASE("nothing, zeros and memory that nobody wrote have the same sum") {
  with_each_instruction_set([] {
    const std::vector<float> zeros(3000, -0.0f);
    for (const std::size_t count : {0u, 1u, 17u, 3000u}) CHECK(exact_squares(zeros.data(), count) == ExactSquares{});
  });
  ExactSquares unwritten;
  std::memset(&unwritten, 0, sizeof unwritten);
  CHECK(unwritten == ExactSquares{});
}

TEST_CASE("many sums of as many numbers as there may be do not overflow") {
  const std::int64_t most = std::numeric_limits<std::int64_t>::max();
  const std::vector<ExactSquares> parts(1000, ExactSquares{14, {most, -most, most}});
  const double expected = 1000.0 * (0x1p63 * 0x1p96 - 0x1p63 * 0x1p64 + 0x1p63 * 0x1p32);
  CHECK(value_of_all(parts) == doctest::Approx(expected).epsilon(1e-15));
}
