// Matrix products: right where they are cut into blocks, alone in what they read and write, and always the same bits.
#include "src/gemm.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "product_sets.hpp"
#include "reference.hpp"
#include "tessera/base/error.hpp"
#include "tessera/nn/threads.hpp"

using namespace tessera;
using namespace tessera::nn;

namespace gemm_test {

constexpr float unset = std::numeric_limits<float>::quiet_NaN();

struct Shape3 {
  std::size_t m;
  std::size_t n;
  std::size_t k;
};
template <typename T>
double element(const std::vector<T>& data, std::size_t row, std::size_t column, std::size_t rows, std::size_t columns,
               bool transposed) {
  return static_cast<double>(transposed ? data[column * rows + row] : data[row * columns + column]);
}

template <typename T>
std::vector<double> reference(const Shape3& s, const std::vector<T>& a, bool ta, const std::vector<T>& b, bool tb) {
  std::vector<double> c(s.m * s.n, 0.0);
  for (std::size_t i = 0; i < s.m; ++i) {
    for (std::size_t j = 0; j < s.n; ++j) {
      for (std::size_t p = 0; p < s.k; ++p)
        c[i * s.n + j] += element(a, i, p, s.m, s.k, ta) * element(b, p, j, s.k, s.n, tb);
    }
  }
  return c;
}

// Several shares of a thread find what the first one has rearranged; the next product with an operand at the same place
// does not.
TEST_CASE("large_products_in_many_shares_have_the_bits_of_one_thread") {
  constexpr std::size_t batch = 24, in = 1500, out = 1500;
  const std::vector<float> w = random_floats(out * in, 2);
  std::vector<float> x(batch * in), y(batch * out), dw(out * in);
  for (const ProductSet set : available_product_sets()) {
    if (set == ProductSet::openblas || set == ProductSet::onednn) continue;
    CAPTURE(to_string(set));
    const WithProducts now(set);
    const auto both = [&](std::uint32_t seed, int threads) {
      set_threads(threads);
      x = random_floats(x.size(), seed);
      gemm<float>({.a = {x.data()}, .b = {w.data(), true}, .c = y.data(), .m = batch, .n = out, .k = in});
      gemm<float>({.a = {y.data(), true}, .b = {x.data()}, .c = dw.data(), .m = out, .n = in, .k = batch});
      return std::pair(y, dw);
    };
    for (const std::uint32_t seed : {1u, 3u}) {
      const auto expected = both(seed, 1);
      for (int round = 0; round < 3; ++round) CHECK((both(seed, 2) == expected));
      CHECK((both(seed + 1, 2) == both(seed + 1, 1)));
    }
  }
  set_threads(1);
}

TEST_CASE("scratch_of_a_product_is_bounded_and_grows_with_the_extents") {
  CHECK(gemm_scratch<float>(1000, 1000, 1000) == 0);
  CHECK(gemm_scratch<double>(1000, 1000, 1000) == 0);
  CHECK(gemm_scratch<bf16>(3, 5, 7) == 3 * 5 + 3 * 7 + 7 * 5);
  CHECK(gemm_scratch<fp16>(100000, 50000, 10000) == 3 * 512 * 512);
}

// Larger than the blocks in which products are cut, in every direction; the last but one is so large that results are
// stored past the caches.
void check_several_blocks() {
  set_threads(1);
  for (const Shape3& s : std::vector<Shape3>{
           {13, 1100, 700}, {1100, 13, 700}, {64, 40, 2500}, {25, 33, 513}, {1030, 1056, 20}, {1, 700, 1030}}) {
    const std::vector<float> a = random_floats(s.m * s.k, 5);
    const std::vector<float> b = random_floats(s.k * s.n, 6);
    for (const bool ta : {false, true}) {
      for (const bool tb : {false, true}) {
        const std::vector<double> expected = reference(s, a, ta, b, tb);
        for (const std::size_t gap : {0, 16, 3}) {
          // On a line of memory, and beside one.
          std::vector<float> memory(s.m * (s.n + gap) + 32, 7.25f);
          float* const c = memory.data() + (64 - reinterpret_cast<std::uintptr_t>(memory.data()) % 64) / 4 + gap % 2;
          Gemm<float> of{.a = {a.data(), ta}, .b = {b.data(), tb}, .c = c, .m = s.m, .n = s.n, .k = s.k};
          of.c_stride = s.n + gap;
          gemm(of);
          of.add = true;
          gemm(of);
          double error = 0.0;
          std::size_t touched = 0;
          for (std::size_t i = 0; i < s.m; ++i) {
            for (std::size_t j = 0; j < s.n + gap; ++j) {
              const float value = c[i * (s.n + gap) + j];
              if (j < s.n) error = std::max(error, std::abs(static_cast<double>(value) - 2 * expected[i * s.n + j]));
              if (j >= s.n) touched += value == 7.25f ? 0 : 1;
            }
          }
          CHECK(error < 2e-3);
          CHECK(touched == 0);
        }
      }
    }
  }
}

TEST_CASE("products_of_several_blocks_are_right_and_leave_alone_what_stands_beside_them") {
  for (const ProductSet set : available_product_sets()) {
    if (set > ProductSet::avx512) continue;  // the same floats
    CAPTURE(to_string(set));
    const WithProducts now(set);
    check_several_blocks();
  }
}

// A matrix whose rows stand 5 elements apart, in NaNs: `rows` rows of `columns`.
template <typename T>
std::vector<T> among_nans(const std::vector<T>& values, std::size_t rows, std::size_t columns) {
  std::vector<T> memory((rows + 3) * (columns + 5), T(unset));
  for (std::size_t i = 0; i < values.size(); ++i) memory[i / columns * (columns + 5) + i % columns] = values[i];
  return memory;
}

template <typename T>
void check_among_nans() {
  for (const int threads : {1, 2}) {
    set_threads(threads);
    for (const Shape3& s : std::vector<Shape3>{{1, 1, 1}, {12, 32, 33}, {13, 33, 7}, {25, 65, 513}, {70, 3, 101}}) {
      const std::vector<T> a = random_elements<T>(s.m * s.k, 1);
      const std::vector<T> b = random_elements<T>(s.k * s.n, 2);
      for (const int bits : {0, 1, 2, 3}) {
        const bool ta = bits % 2 != 0, tb = bits / 2 != 0;
        const std::vector<T> lone_a = among_nans(a, ta ? s.k : s.m, ta ? s.m : s.k);
        const std::vector<T> lone_b = among_nans(b, tb ? s.n : s.k, tb ? s.k : s.n);
        std::vector<T> c(s.m * s.n, T(unset));
        std::vector<float> scratch(gemm_scratch<T>(s.m, s.n, s.k));
        gemm<T>({.a = {lone_a.data(), ta, (ta ? s.m : s.k) + 5},
                 .b = {lone_b.data(), tb, (tb ? s.k : s.n) + 5},
                 .c = c.data(),
                 .m = s.m,
                 .n = s.n,
                 .k = s.k,
                 .scratch = scratch.data()});
        check_stored(c, reference(s, widened(a), ta, widened(b), tb), std::sqrt(static_cast<double>(s.k)));
      }
    }
  }
  set_threads(1);
}

TEST_CASE_TEMPLATE("nothing_beside_the_operands_gets_into_a_product", T, float, bf16, fp16) {
  for (const ProductSet set : available_product_sets()) {
    CAPTURE(to_string(set));
    const WithProducts now(set);
    check_among_nans<T>();
  }
}

// Whole numbers, whose sums are the same in any order.
template <typename T>
std::vector<T> whole_numbers(std::size_t count, std::size_t seed) {
  std::vector<T> values(count);
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t drawn = (i + seed) * 2654435761u >> 7;
    values[i] = static_cast<T>(static_cast<float>(drawn % 31) - 15.0f);
  }
  return values;
}

// a [m, k] · b [k, n], some rows at a time, into memory whose first element stands `offset` elements behind a line of
// the cache; what stands beside the result is 7.
template <typename T>
std::vector<T> product_by_rows(const Shape3& s, std::size_t rows_at_once, std::size_t gap, std::size_t offset) {
  const std::vector<T> a = whole_numbers<T>(s.m * s.k, 7);
  const std::vector<T> b = whole_numbers<T>(s.k * s.n, 8);
  const std::size_t stride = s.n + gap;
  std::vector<T> memory(s.m * stride + 64 + offset, T(7.0f));
  const std::size_t to_line = (64 - reinterpret_cast<std::uintptr_t>(memory.data()) % 64) % 64 / sizeof(T);
  T* const c = memory.data() + to_line + offset;
  std::vector<float> scratch(gemm_scratch<T>(s.m, s.n, s.k));
  for (std::size_t row = 0; row < s.m; row += rows_at_once) {
    gemm<T>({.a = {a.data() + row * s.k},
             .b = {b.data()},
             .c = c + row * stride,
             .m = std::min(rows_at_once, s.m - row),
             .n = s.n,
             .k = s.k,
             .c_stride = stride,
             .scratch = scratch.data()});
  }
  const auto is_untouched = [](T value) { return static_cast<float>(value) == 7.0f; };
  CHECK(std::all_of(memory.data(), c, is_untouched));
  CHECK(std::all_of(c + s.m * stride, memory.data() + memory.size(), is_untouched));
  return {c, c + s.m * stride};
}

// The first goes past the caches, where lines of the result allow it, and the others do not.
TEST_CASE_TEMPLATE("large_results_of_16_bits_have_the_bits_of_small_ones", T, bf16, fp16) {
  for (const int threads : {1, 3}) {
    set_threads(threads);
    for (const auto& [columns, gap] :
         {std::pair<std::size_t, std::size_t>{1856, 0}, {1856, 32}, {1856, 3}, {1855, 1}}) {
      const Shape3 s{1153, columns, 21};
      const std::vector<T> small = product_by_rows<T>(s, 100, gap, 0);
      for (const std::size_t offset : {0u, 1u}) {
        const std::vector<T> large = product_by_rows<T>(s, s.m, gap, offset);
        CHECK(std::memcmp(large.data(), small.data(), small.size() * sizeof(T)) == 0);
      }
    }
  }
  set_threads(1);
}

// On either side of a product of depth 1, whose words have nothing beside their number.
TEST_CASE_TEMPLATE("infinite_numbers_and_those_that_are_none_are_multiplied_as_such", T, bf16, fp16) {
  const float infinity = std::numeric_limits<float>::infinity();
  const std::vector<T> special{T(infinity), T(-infinity), T(unset), T(0.0f)};
  const std::vector<T> twos(33, T(2.0f));
  for (const bool on_the_left : {true, false}) {
    const std::vector<T>& a = on_the_left ? special : twos;
    const std::vector<T>& b = on_the_left ? twos : special;
    std::vector<T> c(a.size() * b.size());
    std::vector<float> scratch(gemm_scratch<T>(a.size(), b.size(), 1));
    gemm<T>({.a = {a.data()},
             .b = {b.data()},
             .c = c.data(),
             .m = a.size(),
             .n = b.size(),
             .k = 1,
             .scratch = scratch.data()});
    const auto is = [&](std::size_t which, auto&& holds) {
      for (std::size_t i = 0; i < twos.size(); ++i) {
        CHECK(holds(static_cast<float>(on_the_left ? c[which * b.size() + i] : c[i * b.size() + which])));
      }
    };
    is(0, [&](float value) { return value == infinity; });
    is(1, [&](float value) { return value == -infinity; });
    is(2, [](float value) { return std::isnan(value); });
    is(3, [](float value) { return value == 0.0f; });
  }
}

TEST_CASE("impossible_extents_and_threads_are_refused") {
  const std::size_t huge = std::size_t{1} << 40;
  float value = 0.0f;
  CHECK_THROWS_AS(gemm<float>({.a = {&value}, .b = {&value}, .c = &value, .m = 1, .n = 1, .k = huge}),
                  tessera::UsageError);
  CHECK_THROWS_WITH_AS(set_threads(0), "nn::set_threads: threads must be at least 1, but is 0", tessera::UsageError);
}

}  // namespace gemm_test
