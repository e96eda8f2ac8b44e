// The product of Goto and van de Geijn (2008, "Anatomy of high-performance matrix multiplication"): tiles of 12 × 32
// stay in registers, b is rearranged block by block into panels of 32 columns that stay in the second cache, and 12
// rows of a in the first. What stands in rows of memory is rearranged by the first tile that reads it, beside its
// arithmetic.
#include <immintrin.h>

#include <cstdint>

#include "src/products/product.hpp"
#include "src/products/transpose_avx512.hpp"

namespace tessera::nn {

namespace {

constexpr std::size_t vector = 16;
constexpr std::size_t tile_rows = 12;
constexpr std::size_t tile_columns = 2 * vector;
constexpr std::size_t block_floats = product_scratch - tile_rows * 512;  // of b, rearranged
constexpr std::size_t most_depth = 2048;                                 // of a block, where all of b fits
constexpr std::size_t usual_depth = 512;                                 // of a block, where it does not
constexpr std::size_t steps_ahead = 16;           // of the depth, that memory is asked for before it is read
constexpr std::size_t streamed_floats = 1 << 20;  // a result that is larger goes past the caches

constexpr std::size_t least(std::size_t a, std::size_t b) { return a < b ? a : b; }
constexpr std::size_t parts(std::size_t whole, std::size_t part) { return (whole + part - 1) / part; }

// Floats from panel to panel. Two lines more than a panel has, so that the same steps of several panels do not meet in
// the same set of the first cache.
constexpr std::size_t panel_stride(std::size_t depth) { return (depth + 1) * tile_columns; }

[[gnu::always_inline]] inline __mmask16 first_lanes(std::size_t count) {
  return static_cast<__mmask16>((1u << least(count, vector)) - 1u);
}

[[gnu::always_inline]] inline void prefetch(const float* from) {
  _mm_prefetch(reinterpret_cast<const char*>(from), _MM_HINT_T1);
}

// ---- a tile ----

// Where a tile reads an operand.
enum class Reads {
  in_place,    // of a only: each row's depth stands together
  rearranged,  // in scratch memory
  rearranges,  // in place, where each step of the depth stands together; and writes it rearranged to scratch memory
};

struct TileOperand {
  const float* from;  // in place
  std::size_t step;   // in place: from row to row of a, or else from step to step of the depth
  float* scratch;
};

struct Tile {
  TileOperand a;
  TileOperand b;
  std::size_t depth;
  float* c;
  std::size_t c_row;
  bool add;
  bool stream;  // past the caches; c is aligned to 64 bytes
};

// The numbers of a that one step of the depth needs.
template <std::size_t rows, Reads reads>
class Factors {
 public:
  explicit Factors(const TileOperand& a) : step_(a.step), scratch_(a.scratch) {
    for (std::size_t i = 0; i < 4; ++i)
      rows_[i] = a.from + (reads == Reads::in_place && 3 * i < rows ? 3 * i * step_ : 0);
  }

  [[gnu::always_inline]] void begin_step(std::size_t depth) const {
    if constexpr (reads == Reads::rearranges) {
      const float* const from = rows_[0] + depth * step_;
      prefetch(from + steps_ahead * step_);
      prefetch(from + steps_ahead * step_ + rows - 1);
      const __mmask16 mask = first_lanes(rows);
      _mm512_mask_storeu_ps(scratch_ + depth * tile_rows, mask, _mm512_maskz_loadu_ps(mask, from));
    }
  }
  [[gnu::always_inline]] __m512 at(std::size_t row, std::size_t depth) const {
    if constexpr (reads == Reads::in_place) return _mm512_set1_ps(rows_[row / 3][row % 3 * step_ + depth]);
    if constexpr (reads == Reads::rearranged) return _mm512_set1_ps(scratch_[depth * tile_rows + row]);
    if constexpr (reads == Reads::rearranges) return _mm512_set1_ps(rows_[0][depth * step_ + row]);
  }

 private:
  const float* rows_[4];  // every third row, so that few registers hold them all
  std::size_t step_;
  float* scratch_;
};

template <Reads reads>
[[gnu::always_inline]] inline __m512 column_part(const TileOperand& b, std::size_t depth, std::size_t first) {
  float* const panel = b.scratch + depth * tile_columns + first;
  if constexpr (reads == Reads::rearranged) return _mm512_load_ps(panel);
  const float* const from = b.from + depth * b.step + first;
  prefetch(from + steps_ahead * b.step);
  const __m512 value = _mm512_loadu_ps(from);
  _mm512_store_ps(panel, value);
  return value;
}

[[gnu::always_inline]] inline void store(const Tile& tile, float* to, __m512 sum) {
  if (tile.stream) return _mm512_stream_ps(to, sum);
  _mm512_storeu_ps(to, tile.add ? _mm512_add_ps(_mm512_loadu_ps(to), sum) : sum);
}

template <std::size_t rows, Reads reads_a, Reads reads_b>
void multiply_tile(const Tile& tile) {
  const Factors<rows, reads_a> factors(tile.a);
  __m512 sums[rows][2];
  for (auto& row : sums) row[0] = row[1] = _mm512_setzero_ps();
#pragma GCC unroll 2
  for (std::size_t depth = 0; depth < tile.depth; ++depth) {
    factors.begin_step(depth);
    const __m512 left = column_part<reads_b>(tile.b, depth, 0);
    const __m512 right = column_part<reads_b>(tile.b, depth, vector);
#pragma GCC unroll 12
    for (std::size_t row = 0; row < rows; ++row) {
      const __m512 factor = factors.at(row, depth);
      sums[row][0] = _mm512_fmadd_ps(factor, left, sums[row][0]);
      sums[row][1] = _mm512_fmadd_ps(factor, right, sums[row][1]);
    }
  }
#pragma GCC unroll 12
  for (std::size_t row = 0; row < rows; ++row) {
    store(tile, tile.c + row * tile.c_row, sums[row][0]);
    store(tile, tile.c + row * tile.c_row + vector, sums[row][1]);
  }
}

using TileFunction = void (*)(const Tile&);

template <Reads a>
TileFunction short_tile(std::size_t rows) {
  constexpr Reads b = Reads::rearranged;
  constexpr TileFunction functions[] = {multiply_tile<1, a, b>,  multiply_tile<2, a, b>, multiply_tile<3, a, b>,
                                        multiply_tile<4, a, b>,  multiply_tile<5, a, b>, multiply_tile<6, a, b>,
                                        multiply_tile<7, a, b>,  multiply_tile<8, a, b>, multiply_tile<9, a, b>,
                                        multiply_tile<10, a, b>, multiply_tile<11, a, b>};
  return functions[rows - 1];
}

template <Reads a>
TileFunction whole_tile(Reads b) {
  return b == Reads::rearranges ? multiply_tile<tile_rows, a, Reads::rearranges>
                                : multiply_tile<tile_rows, a, Reads::rearranged>;
}

// Tiles of fewer rows than tile_rows rearrange nothing.
TileFunction tile_function(std::size_t rows, Reads a, Reads b) {
  if (rows < tile_rows)
    return a == Reads::in_place ? short_tile<Reads::in_place>(rows) : short_tile<Reads::rearranged>(rows);
  if (a == Reads::in_place) return whole_tile<Reads::in_place>(b);
  return a == Reads::rearranges ? whole_tile<Reads::rearranges>(b) : whole_tile<Reads::rearranged>(b);
}

// ---- rearranging apart from tiles ----

// Sixteen columns whose depth stands together, as rows of sixteen columns. `stride`: from column to column.
void transpose(const float* from, std::size_t stride, std::size_t columns, std::size_t depth, float* to) {
  __m512 in[vector];
  const __mmask16 mask = first_lanes(depth);
  for (std::size_t i = 0; i < vector; ++i) {
    in[i] = i < columns ? _mm512_maskz_loadu_ps(mask, from + i * stride) : _mm512_setzero_ps();
  }
  transpose_in_registers(in);
  for (std::size_t i = 0; i < least(depth, vector); ++i) _mm512_store_ps(to + i * tile_columns, in[i]);
}

// A panel of `columns` columns, and zeros, from a b whose depth stands together.
void rearrange_columns(const TileOperand& b, std::size_t stride, std::size_t columns, std::size_t depth) {
  for (std::size_t first = 0; first < tile_columns; first += vector) {
    const std::size_t left = columns > first ? columns - first : 0;
    for (std::size_t at = 0; at < depth; at += vector) {
      transpose(b.from + first * stride + at, stride, left, depth - at, b.scratch + at * tile_columns + first);
    }
  }
}

// The same from a b whose columns stand together.
void rearrange_rows(const TileOperand& b, std::size_t columns, std::size_t depth) {
  for (std::size_t first = 0; first < tile_columns; first += vector) {
    const __mmask16 mask = first_lanes(columns > first ? columns - first : 0);
    for (std::size_t at = 0; at < depth; ++at) {
      _mm512_store_ps(b.scratch + at * tile_columns + first, _mm512_maskz_loadu_ps(mask, b.from + at * b.step + first));
    }
  }
}

void rearrange_factors(const TileOperand& a, std::size_t rows, std::size_t depth) {
  const __mmask16 mask = first_lanes(rows);
  for (std::size_t at = 0; at < depth; ++at) {
    _mm512_mask_storeu_ps(a.scratch + at * tile_rows, mask, _mm512_maskz_loadu_ps(mask, a.from + at * a.step));
  }
}

// ---- the whole ----

// A part of a product that one block of b serves.
struct Block {
  std::size_t first_depth;
  std::size_t depth;
  std::size_t first_column;
  std::size_t columns;
};

class BlockProduct {
 public:
  BlockProduct(const Product& of, const Block& block, float* scratch)
      : of_(of), block_(block), panels_(scratch), room_(scratch + block_floats) {
    // A result is streamed when each of its lines is written whole, and once.
    stream_ = !of.add && block.depth == of.depth && of.c_column == 1 && of.c_row % vector == 0 &&
              of.columns % tile_columns == 0 && reinterpret_cast<std::uintptr_t>(of.c) % 64 == 0 &&
              of.rows * of.columns > streamed_floats;
  }

  void run() {
    for (std::size_t row = 0; row < of_.rows; row += tile_rows) {
      for (std::size_t column = 0; column < block_.columns; column += tile_columns) multiply(row, column);
    }
    if (stream_) _mm_sfence();
  }

 private:
  void multiply(std::size_t row, std::size_t column) {
    const std::size_t rows = least(tile_rows, of_.rows - row);
    const std::size_t columns = least(tile_columns, block_.columns - column);
    Tile tile{.a = {of_.a + row * of_.a_row + block_.first_depth * of_.a_depth, factor_step(), room_},
              .b = {of_.b + block_.first_depth * of_.b_depth + (block_.first_column + column) * of_.b_column,
                    of_.b_depth, panels_ + column / tile_columns * panel_stride(block_.depth)},
              .depth = block_.depth,
              .c = of_.c + row * of_.c_row + (block_.first_column + column) * of_.c_column,
              .c_row = of_.c_row,
              .add = of_.add || block_.first_depth > 0,
              .stream = stream_};
    const Reads a = column == 0 ? first_reads_of_a(tile.a, rows) : later_reads_of_a();
    const Reads b = row == 0 ? first_reads_of_b(tile.b, rows, columns) : Reads::rearranged;
    const TileFunction function = tile_function(rows, a, b);
    if (columns == tile_columns && of_.c_column == 1) return function(tile);
    multiply_apart(tile, function, rows, columns);
  }

  bool in_place() const { return of_.a_depth == 1; }
  std::size_t factor_step() const { return in_place() ? of_.a_row : of_.a_depth; }
  Reads later_reads_of_a() const { return in_place() ? Reads::in_place : Reads::rearranged; }
  Reads first_reads_of_a(const TileOperand& a, std::size_t rows) const {
    if (in_place()) return Reads::in_place;
    if (rows == tile_rows) return Reads::rearranges;
    rearrange_factors(a, rows, block_.depth);
    return Reads::rearranged;
  }
  Reads first_reads_of_b(const TileOperand& b, std::size_t rows, std::size_t columns) const {
    if (of_.b_column != 1) {
      rearrange_columns(b, of_.b_column, columns, block_.depth);
    } else if (rows == tile_rows && columns == tile_columns) {
      return Reads::rearranges;
    } else {
      rearrange_rows(b, columns, block_.depth);
    }
    return Reads::rearranged;
  }

  // A tile that is not as wide as tiles are, or whose columns stand together, by way of memory of its own.
  void multiply_apart(Tile tile, TileFunction function, std::size_t rows, std::size_t columns) const {
    alignas(64) float sums[tile_rows * tile_columns];
    float* const c = tile.c;
    const bool add = tile.add;
    tile.c = sums;
    tile.c_row = tile_columns;
    tile.add = false;
    function(tile);
    for (std::size_t column = 0; column < columns; ++column) {
      for (std::size_t row = 0; row < rows; ++row) {
        float& to = c[row * of_.c_row + column * of_.c_column];
        to = add ? to + sums[row * tile_columns + column] : sums[row * tile_columns + column];
      }
    }
  }

  const Product& of_;
  const Block& block_;
  float* panels_;
  float* room_;  // rearranged rows of a
  bool stream_;
};

}  // namespace

// All, where b's panels then fit, and nothing of a is rearranged.
std::size_t block_depth_avx512(const Product& of) {
  const bool fits = of.depth <= most_depth && panel_stride(of.depth) * parts(of.columns, tile_columns) <= block_floats;
  return fits && of.a_depth == 1 ? of.depth : least(usual_depth, of.depth);
}

void multiply_avx512(const Product& of, float* scratch) {
  const std::size_t depth = of.block_depth == 0 ? block_depth_avx512(of) : of.block_depth;
  const std::size_t columns = block_floats / panel_stride(depth) * tile_columns;
  for (std::size_t column = 0; column < of.columns; column += columns) {
    for (std::size_t first = 0; first < of.depth; first += depth) {
      const Block block{first, least(depth, of.depth - first), column, least(columns, of.columns - column)};
      BlockProduct(of, block, scratch).run();
    }
  }
}

}  // namespace tessera::nn
