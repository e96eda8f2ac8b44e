// Exact sums of squares (kernels/exact_squares.hpp), number by number and bin by bin: hosts and devices do the same
// operations. Files that are compiled for one instruction set include this, so every function is inlined.
#pragma once

#include <cstdint>

#include "kernels/any_device.hpp"
#include "tessera/kernels/exact_squares.hpp"

#define TESSERA_INLINED [[gnu::always_inline]] TESSERA_ANY_DEVICE inline

namespace tessera::kernels {

// ---- numbers to bins ----

inline constexpr int bin_bits = 32;
inline constexpr int fp64_fraction_bits = 52;
inline constexpr int fp64_exponent_bias = 1023;

TESSERA_INLINED std::uint64_t bits_of_fp64(double value) { return __builtin_bit_cast(std::uint64_t, value); }

TESSERA_INLINED double power_of_two(std::int64_t exponent) {
  return __builtin_bit_cast(double, static_cast<std::uint64_t>(exponent + fp64_exponent_bias) << fp64_fraction_bits);
}

// The bin b of a square from 2^(32 b - 1) to below 2^(32 b + 31), counted from bin_zero as tops are. No square of an
// fp32 number, nor a sum of them, is so small that the dividend is negative.
TESSERA_INLINED std::int64_t bin_of_square(double square) {
  if (square == 0.0) return ExactSquares::none;
  const auto exponent = static_cast<std::int64_t>(bits_of_fp64(square) >> fp64_fraction_bits) - fp64_exponent_bias;
  return (exponent + 1 + bin_bits * ExactSquares::bin_zero) / bin_bits;
}

// The bin that a number's square belongs to, or the top that it gives a sum. `magnitude` is the number's bits without
// its sign; of several numbers the one with the largest decides, and those of NaN are larger than those of infinity.
TESSERA_INLINED std::int64_t top_of(std::uint32_t magnitude) {
  constexpr std::uint32_t infinity = 0x7f800000u;
  if (magnitude >= infinity) return magnitude == infinity ? ExactSquares::infinite : ExactSquares::nan;
  const double number = static_cast<double>(__builtin_bit_cast(float, magnitude));
  return bin_of_square(number * number);
}

TESSERA_INLINED bool has_bins(std::int64_t top) { return top != ExactSquares::none && top < ExactSquares::infinite; }

// In fp64 a number that is added to a bin's rounder is rounded to a multiple of the bin's unit, because that is the
// last place of both the rounder and the sum. The bits of the sum, less those of the rounder, count the units.
struct Rounders {
  double of_bin[3];
};
TESSERA_INLINED double rounder_of(std::int64_t bin) {
  return 1.5 * power_of_two(fp64_fraction_bits + bin_bits * (bin - ExactSquares::bin_zero));
}
TESSERA_INLINED Rounders rounders_of(std::int64_t top) {
  return {{rounder_of(top), rounder_of(top - 1), rounder_of(top - 2)}};
}

// Adds the bits of a number's rounded slices, modulo 2^64. The square is exact, so a fused multiply-add gives the same.
TESSERA_INLINED void add_slices_of(double square, const Rounders& rounders, std::uint64_t (&sums)[3]) {
  const double first = square + rounders.of_bin[0];
  const double after_first = square - (first - rounders.of_bin[0]);
  const double second = after_first + rounders.of_bin[1];
  const double after_second = after_first - (second - rounders.of_bin[1]);
  const double third = after_second + rounders.of_bin[2];
  sums[0] += bits_of_fp64(first);
  sums[1] += bits_of_fp64(second);
  sums[2] += bits_of_fp64(third);
}
TESSERA_INLINED void add_slices(double number, const Rounders& rounders, std::uint64_t (&sums)[3]) {
  add_slices_of(number * number, rounders, sums);
}

// The sum of `numbers` numbers, zeros too, from what add_slices() has added of them: the rounders are taken away.
TESSERA_INLINED ExactSquares sum_of_slices(std::int64_t top, const std::uint64_t (&sums)[3], std::uint64_t numbers) {
  const Rounders rounders = rounders_of(top);
  ExactSquares sum{top, {}};
  for (int k = 0; k < 3; ++k) {
    sum.bins[k] = static_cast<std::int64_t>(sums[k] - numbers * bits_of_fp64(rounders.of_bin[k]));
  }
  return sum;
}

// A sum of squares that was formed otherwise (fp32 in blocks, fp64 over them) as a term of an exact one.
TESSERA_INLINED ExactSquares exact_term(double squares) {
  if (squares != squares) return {ExactSquares::nan, {}};
  if (squares >= 0x1p287) return {ExactSquares::infinite, {}};  // beyond the last bin, and any sum of fp32 numbers
  const std::int64_t top = bin_of_square(squares);
  if (top == ExactSquares::none) return {};
  std::uint64_t sums[3] = {};
  add_slices_of(squares, rounders_of(top), sums);
  return sum_of_slices(top, sums, 1);
}

// ---- sums of sums ----

// Three bins below a top that is higher by `by`: those that come to stand below the third are dropped.
struct ThreeBins {
  std::int64_t of[3];
};
TESSERA_INLINED ThreeBins raised(const std::int64_t (&bins)[3], std::int64_t by) {
  if (by == 0) return {{bins[0], bins[1], bins[2]}};
  if (by == 1) return {{0, bins[0], bins[1]}};
  if (by == 2) return {{0, 0, bins[0]}};
  return {{0, 0, 0}};
}

TESSERA_INLINED void add_bins(std::int64_t (&sum)[3], std::int64_t sum_raised_by, const std::int64_t (&term)[3],
                              std::int64_t term_raised_by) {
  const ThreeBins before = raised(sum, sum_raised_by);
  const ThreeBins more = raised(term, term_raised_by);
  for (int k = 0; k < 3; ++k) sum[k] = before.of[k] + more.of[k];
}

// Tops of what is not finite are above all others by three or more, so that such sums keep no bins.
TESSERA_INLINED void add_exactly(ExactSquares& sum, const ExactSquares& term) {
  const std::int64_t top = sum.top > term.top ? sum.top : term.top;
  add_bins(sum.bins, top - sum.top, term.bins, top - term.top);
  sum.top = top;
}

// A sum of up to 2^31 sums, each of as many numbers as a sum may have: the two halves of their bins add up apart.
struct ExactTotal {
  std::int64_t top;
  std::int64_t low[3];   // of each summand from 0 to 2^32 - 1
  std::int64_t high[3];  // multiples of 2^32
};

TESSERA_INLINED void add_exactly(ExactTotal& sum, const ExactTotal& term) {
  const std::int64_t top = sum.top > term.top ? sum.top : term.top;
  add_bins(sum.low, top - sum.top, term.low, top - term.top);
  add_bins(sum.high, top - sum.top, term.high, top - term.top);
  sum.top = top;
}

TESSERA_INLINED void add_exactly(ExactTotal& sum, const ExactSquares& term) {
  ExactTotal halves{term.top, {}, {}};
  for (int k = 0; k < 3; ++k) {
    halves.low[k] = term.bins[k] & 0xffffffff;
    halves.high[k] = term.bins[k] >> bin_bits;
  }
  add_exactly(sum, halves);
}

// In fp64. The halves depend on how the sum was cut; carried from the smallest to the largest, they are the digits of
// one whole number of the last bin's units. Then each operation rounds, and products with powers of two are exact.
TESSERA_INLINED double fp64_of(const ExactTotal& total) {
  const double zero = 0.0;
  if (total.top == ExactSquares::infinite) return 1.0 / zero;
  if (total.top == ExactSquares::nan) return zero / zero;
  constexpr std::int64_t digit = 0xffffffff;
  const std::int64_t first = total.low[2];
  const std::int64_t second = total.low[1] + total.high[2] + (first >> bin_bits);
  const std::int64_t third = total.low[0] + total.high[1] + (second >> bin_bits);
  const std::int64_t rest = total.high[0] + (third >> bin_bits);
  constexpr double of_next = 0x1p32;
  double units = static_cast<double>(rest) * of_next + static_cast<double>(third & digit);
  units = units * of_next + static_cast<double>(second & digit);
  units = units * of_next + static_cast<double>(first & digit);
  return units * power_of_two(bin_bits * (total.top - 2 - ExactSquares::bin_zero));
}

}  // namespace tessera::kernels
