// This is product_avx512.cpp with words in place of numbers: a word is two numbers that follow each other in the depth,
// and one instruction multiplies and adds sixteen pairs of them. All of b is rearranged, into panels of 32 columns; of
// a nothing where its words stand in memory, else 12 rows at a time.
#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "src/products/product.hpp"
#include "src/products/transpose_avx512.hpp"

namespace tessera::nn {

namespace {

constexpr std::size_t vector = 16;
constexpr std::size_t tile_rows = 12;
constexpr std::size_t tile_columns = 2 * vector;

constexpr std::size_t least(std::size_t a, std::size_t b) { return a < b ? a : b; }
constexpr std::size_t words_of(std::size_t depth) { return (depth + 1) / 2; }
// Words from panel to panel, with two lines to spare, so that panels do not meet in the same set of the first cache.
constexpr std::size_t panel_stride(std::size_t depth) { return (words_of(depth) + 1) * tile_columns; }

constexpr std::size_t most_extent = 512;  // of depth and columns
static_assert(vector * words_of(most_extent) + most_extent / tile_columns * panel_stride(most_extent) <=
              product_scratch);

[[gnu::always_inline]] inline __mmask16 first_lanes(std::size_t count) {
  return static_cast<__mmask16>((1u << least(count, vector)) - 1u);
}
[[gnu::always_inline]] inline __mmask32 first_halves(std::size_t count) {
  return count >= 32 ? ~__mmask32{0} : (__mmask32{1} << count) - 1u;
}

// Words from sixteen numbers of one step of the depth and those of the next.
[[gnu::always_inline]] inline __m512i interleaved(__m256i low, __m256i high) {
  return _mm512_or_si512(_mm512_cvtepu16_epi32(low), _mm512_slli_epi32(_mm512_cvtepu16_epi32(high), 16));
}

// From where in two vectors of 32 numbers the words of sixteen columns come, from `first` on.
[[gnu::always_inline]] inline __m512i places_of_words(int first) {
  const __m512i low = _mm512_add_epi32(_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
                                       _mm512_set1_epi32(first));
  return _mm512_or_si512(low, _mm512_slli_epi32(_mm512_add_epi32(low, _mm512_set1_epi32(32)), 16));
}

// ---- a tile ----

// Words of a: the row's at base + row * row_step + word * word_step, in bytes.
struct Factors {
  const char* base;
  std::size_t row_step;
  std::size_t word_step;
};

struct Tile {
  std::size_t words;
  std::size_t c_row;
  std::size_t c_column;
  std::size_t columns;
  bool add;
  RoundedResult rounded;  // of this tile; instead of c, where it is not null
  Factors a = {};
  const float* panel = nullptr;
  float* c = nullptr;
};

[[gnu::always_inline]] inline __m512bh word_of(const char* at) {
  std::int32_t word;
  std::memcpy(&word, at, sizeof(word));
  return reinterpret_cast<__m512bh>(_mm512_set1_epi32(word));
}

[[gnu::always_inline]] inline void store(float* to, __mmask16 lanes, bool add, __m512 sum) {
  const __m512 before = add ? _mm512_maskz_loadu_ps(lanes, to) : _mm512_setzero_ps();
  _mm512_mask_storeu_ps(to, lanes, _mm512_add_ps(before, sum));
}

// Rows of sums where columns stand together in c, else its columns.
template <std::size_t rows>
[[gnu::always_inline]] inline void store_half(const Tile& tile, const __m512 (&sums)[rows][2], std::size_t half) {
  const std::size_t first = half * vector;
  if (tile.columns <= first) return;
  const std::size_t columns = least(tile.columns - first, vector);
  if (tile.c_column == 1) {
#pragma GCC unroll 12
    for (std::size_t row = 0; row < rows; ++row) {
      store(tile.c + row * tile.c_row + first, first_lanes(columns), tile.add, sums[row][half]);
    }
    return;
  }
  __m512 transposed[vector];
#pragma GCC unroll 16
  for (std::size_t row = 0; row < vector; ++row) transposed[row] = row < rows ? sums[row][half] : _mm512_setzero_ps();
  transpose_in_registers(transposed);
  for (std::size_t column = 0; column < columns; ++column) {
    store(tile.c + (first + column) * tile.c_column, first_lanes(rows), tile.add, transposed[column]);
  }
}

// Rows of sums, rounded. Sums are never denormal here, so the instruction, which takes those for zero, rounds as others
// do.
template <std::size_t rows>
[[gnu::always_inline]] inline void store_rounded(const Tile& tile, const __m512 (&sums)[rows][2]) {
  const __mmask32 lanes = first_halves(tile.columns);
#pragma GCC unroll 12
  for (std::size_t row = 0; row < rows; ++row) {
    std::uint16_t* const to = tile.rounded.c + row * tile.rounded.row;
    const auto numbers = (__m512i)_mm512_cvtne2ps_pbh(sums[row][1], sums[row][0]);
    if (tile.rounded.stream) {
      _mm512_stream_si512(reinterpret_cast<__m512i*>(to), numbers);
    } else {
      _mm512_mask_storeu_epi16(to, lanes, numbers);
    }
  }
}

template <std::size_t rows>
void multiply_tile(const Tile& tile) {
  const std::size_t step = tile.a.row_step;
  const char* every_third[4];  // row, so that few registers hold them all
  for (std::size_t i = 0; i < 4; ++i) every_third[i] = tile.a.base + (3 * i < rows ? 3 * i * step : 0);
  __m512 sums[rows][2];
#pragma GCC unroll 12
  for (std::size_t row = 0; row < rows; ++row) sums[row][0] = sums[row][1] = _mm512_setzero_ps();
  std::size_t at = 0;
#pragma GCC unroll 2
  for (std::size_t word = 0; word < tile.words; ++word, at += tile.a.word_step) {
    const auto left = reinterpret_cast<__m512bh>(_mm512_load_ps(tile.panel + word * tile_columns));
    const auto right = reinterpret_cast<__m512bh>(_mm512_load_ps(tile.panel + word * tile_columns + vector));
#pragma GCC unroll 12
    for (std::size_t row = 0; row < rows; ++row) {
      const __m512bh factor = word_of(every_third[row / 3] + row % 3 * step + at);
      sums[row][0] = _mm512_dpbf16_ps(sums[row][0], factor, left);
      sums[row][1] = _mm512_dpbf16_ps(sums[row][1], factor, right);
    }
  }
  if (tile.rounded.c != nullptr) return store_rounded(tile, sums);
  store_half(tile, sums, 0);
  store_half(tile, sums, 1);
}

using TileFunction = void (*)(const Tile&);
constexpr TileFunction tiles[] = {multiply_tile<1>, multiply_tile<2>,  multiply_tile<3>,  multiply_tile<4>,
                                  multiply_tile<5>, multiply_tile<6>,  multiply_tile<7>,  multiply_tile<8>,
                                  multiply_tile<9>, multiply_tile<10>, multiply_tile<11>, multiply_tile<12>};

// ---- rearranging ----

// All panels of a b whose columns stand together. Its lines are read from end to end: one panel's part of each is a
// line of the cache alone, and where lines stand a power of two apart, these would meet in one set.
void interleave_rows(const PairProduct& of, float* panels) {
  constexpr std::size_t ahead = 4;  // lines of b, fetched while these are rearranged
  const __m512i first = places_of_words(0), second = places_of_words(vector);
  const std::uint16_t* from = of.b;
  for (std::size_t depth = 0; depth < of.depth; depth += 2, from += 2 * of.b_depth) {
    const bool has_next = depth + 1 < of.depth;
    const bool has_more = depth + ahead + 1 < of.depth;
    float* to = panels + depth / 2 * tile_columns;
    for (std::size_t column = 0; column < of.columns; column += tile_columns, to += panel_stride(of.depth)) {
      const std::uint16_t* const at = from + column;
      if (has_more) {
        _mm_prefetch(reinterpret_cast<const char*>(at + ahead * of.b_depth), _MM_HINT_T0);
        _mm_prefetch(reinterpret_cast<const char*>(at + (ahead + 1) * of.b_depth), _MM_HINT_T0);
      }
      const __mmask32 lanes = first_halves(of.columns - column);
      const __m512i low = _mm512_maskz_loadu_epi16(lanes, at);
      const __m512i high = _mm512_maskz_loadu_epi16(has_next ? lanes : __mmask32{0}, has_next ? at + of.b_depth : at);
      _mm512_store_si512(to, _mm512_permutex2var_epi16(low, first, high));
      _mm512_store_si512(to + vector, _mm512_permutex2var_epi16(low, second, high));
    }
  }
}

// A panel of a b whose depth stands together: its words do, too.
void transpose_columns(const PairProduct& of, std::size_t column, float* panel) {
  for (std::size_t first = 0; first < tile_columns; first += vector) {
    for (std::size_t depth = 0; depth < of.depth; depth += 2 * vector) {
      const __mmask32 halves = first_halves(of.depth - depth);
      __m512 transposed[vector];
      for (std::size_t i = 0; i < vector; ++i) {
        const std::size_t at = column + first + i;
        transposed[i] = at < of.columns
                            ? _mm512_castsi512_ps(_mm512_maskz_loadu_epi16(halves, of.b + at * of.b_column + depth))
                            : _mm512_setzero_ps();
      }
      transpose_in_registers(transposed);
      const std::size_t words = least(words_of(of.depth - depth), vector);
      for (std::size_t i = 0; i < words; ++i) {
        _mm512_store_ps(panel + (depth / 2 + i) * tile_columns + first, transposed[i]);
      }
    }
  }
}

void rearrange_b(const PairProduct& of, float* panels) {
  if (of.b_column == 1) return interleave_rows(of, panels);
  for (std::size_t column = 0; column < of.columns; column += tile_columns) {
    transpose_columns(of, column, panels + column / tile_columns * panel_stride(of.depth));
  }
}

// Rows of a, whose words do not stand in memory as they are: sixteen to a line, one line for each word.
Factors rearranged_rows(const PairProduct& of, std::size_t row, std::size_t rows, float* room) {
  const __mmask16 lanes = first_lanes(rows);
  for (std::size_t depth = 0; depth < of.depth; depth += 2) {
    const std::uint16_t* const from = of.a + row * of.a_row + depth * of.a_depth;
    const bool has_next = depth + 1 < of.depth;
    float* const to = room + depth / 2 * vector;
    if (of.a_row == 1) {
      const __m256i high =
          _mm256_maskz_loadu_epi16(has_next ? lanes : __mmask16{0}, has_next ? from + of.a_depth : from);
      _mm512_store_si512(to, interleaved(_mm256_maskz_loadu_epi16(lanes, from), high));
      continue;
    }
    for (std::size_t i = 0; i < rows; ++i) {
      const std::uint16_t* const number = from + i * of.a_row;
      const std::uint32_t word = number[0] | (has_next ? static_cast<std::uint32_t>(number[1]) << 16 : 0u);
      std::memcpy(to + i, &word, sizeof(word));
    }
  }
  return {.base = reinterpret_cast<const char*>(room), .row_step = sizeof(float), .word_step = vector * sizeof(float)};
}

Factors factors_of(const PairProduct& of, std::size_t row, std::size_t rows, float* room) {
  // The last word of an odd depth would have a number that is not this row's.
  if (of.a_depth != 1 || of.depth % 2 != 0) return rearranged_rows(of, row, rows, room);
  return {.base = reinterpret_cast<const char*>(of.a + row * of.a_row),
          .row_step = of.a_row * sizeof(std::uint16_t),
          .word_step = sizeof(float)};
}

Tile tile_of(const PairProduct& of, const RoundedResult& rounded, std::size_t row, std::size_t column) {
  Tile tile{.words = words_of(of.depth),
            .c_row = of.c_row,
            .c_column = of.c_column,
            .columns = least(tile_columns, of.columns - column),
            .add = of.add,
            .rounded = rounded};
  if (rounded.c != nullptr) {
    tile.rounded.c += row * rounded.row + column;
  } else {
    tile.c = of.c + row * of.c_row + column * of.c_column;
  }
  return tile;
}

void multiply(const PairProduct& of, const RoundedResult& rounded, float* scratch) {
  float* const room = scratch;
  float* const panels = scratch + vector * words_of(of.depth);
  rearrange_b(of, panels);
  for (std::size_t row = 0; row < of.rows; row += tile_rows) {
    const std::size_t rows = least(tile_rows, of.rows - row);
    const Factors a = factors_of(of, row, rows, room);
    for (std::size_t column = 0; column < of.columns; column += tile_columns) {
      Tile tile = tile_of(of, rounded, row, column);
      tile.a = a;
      tile.panel = panels + column / tile_columns * panel_stride(of.depth);
      tiles[rows - 1](tile);
    }
  }
}

// Whether each line of the result is a tile's own, and whole.
bool has_whole_lines(const PairProduct& of, const RoundedResult& to) {
  return of.columns % tile_columns == 0 && to.row % tile_columns == 0 &&
         reinterpret_cast<std::uintptr_t>(to.c) % 64 == 0;
}

}  // namespace

void multiply_bf16_avx512(const PairProduct& product, float* scratch) { multiply(product, {}, scratch); }

void multiply_rounded_bf16_avx512(const PairProduct& product, const RoundedResult& result, float* scratch) {
  RoundedResult to = result;
  to.stream = result.stream && has_whole_lines(product, result);
  multiply(product, to, scratch);
  if (to.stream) _mm_sfence();
}

}  // namespace tessera::nn
