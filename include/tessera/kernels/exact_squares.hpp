// A sum of squares of fp32 numbers that depends on the numbers alone: neither on their order nor on how they are cut
// into parts. It is kept as integers in bins at fixed exponents, so that adding is exact. The idea is Demmel and
// Nguyen's (Parallel Reproducible Summation, IEEE Transactions on Computers 64, 2015), and that of ReproBLAS (Ahrens,
// Demmel and Nguyen, Algorithms for Efficient Reproducible Floating Point Summation, ACM TOMS 46, 2020).
//
// Bin b counts multiples of 2^(32 b). A square d is exact in fp64. It is cut into slices from some bin down: its slice
// in bin b is what is left of it, rounded to the nearest multiple of 2^(32 b), and the rest goes on to bin b - 1.
// (There are no ties: d is an odd multiple of an even power of two. Norms of units, which are sums of squares in fp64
// and are added so where NormPartials::any_order asks for it, may have some; these go to the even one.) A square
// belongs to the smallest bin b with d < 2^(32 b + 31), so that its slices in all larger bins are 0.
//
// A sum keeps three bins. The largest of them, its top, is the largest that any of its squares belongs to. Why all
// three depend on the numbers alone: a slice is a function of d and b, not of what was added before, and cutting may
// begin in any bin from the one that d belongs to upwards, because the slices above it are 0. The top is a maximum, and
// each bin is an integer sum, so neither depends on an order. A part with a lower top has dropped nothing that the
// whole keeps, because its three bins end below those of the whole.
//
// At most 2^-64 of the largest square is dropped of each one, so n numbers have a relative error of n * 2^-64 at most;
// their sum's value in fp64 adds a few units of its last place.
#pragma once

#include <cstdint>

#pragma GCC visibility push(default)

namespace tessera::kernels {

// bins[k] counts multiples of 2^(32 (top - bin_zero - k)). A sum has fewer than 2^32 numbers, so that
// |bins[k]| <= 2^31 each does not overflow. Memory that is all zeros, which nobody wrote, is the sum of no numbers.
struct ExactSquares {
  static constexpr std::int64_t none = 0;  // top of a sum of zeros
  static constexpr std::int64_t bin_zero =
      11;  // top of a sum whose largest square is in [1/2, 2^31); there are 1 to 19
  static constexpr std::int64_t infinite = 22;  // top of a sum with an infinity, whose bins are 0
  static constexpr std::int64_t nan = 25;       // top of a sum with a NaN; likewise

  std::int64_t top;
  std::int64_t bins[3];

  friend bool operator==(const ExactSquares&, const ExactSquares&) = default;
};

}  // namespace tessera::kernels

#pragma GCC visibility pop
