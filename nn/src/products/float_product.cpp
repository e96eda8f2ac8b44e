// The product of Goto and van de Geijn (2008, "Anatomy of high-performance matrix multiplication"): tiles stay in
// registers (float_lanes.hpp), b is rearranged block by block into panels as wide as a tile that stay in the second
// cache, and a tile's rows of a in the first. What stands in rows of memory is rearranged by the first tile that reads
// it, beside its arithmetic. Matrices of 16 bits become floats where they would be rearranged, and rows of a that would
// be read in place, too. Compiled once for each instruction set, as TESSERA_FLOAT_PRODUCTS.
#include <immintrin.h>

#include <cstdint>
#include <type_traits>
#include <utility>

#include "src/products/float_lanes.hpp"
#include "src/products/product.hpp"

namespace tessera::nn {

namespace {

constexpr std::size_t tile_columns = 2 * vector;
constexpr std::size_t most_depth = 2048;          // of a block, where all of b fits
constexpr std::size_t usual_depth = 512;          // of a block, where it does not
constexpr std::size_t steps_ahead = 16;           // of the depth, that memory is asked for before it is read
constexpr std::size_t streamed_floats = 1 << 20;  // a result that is larger goes past the caches

// So many rows of a, or columns of b, are rearranged at once: by a tile beside its arithmetic, or, where a tile's are
// no more than a line of memory, those of several tiles before it.
constexpr bool tiles_rearrange = vector == 16;
constexpr std::size_t rows_together = tiles_rearrange ? tile_rows : 8 * tile_rows;
constexpr std::size_t columns_together = tiles_rearrange ? tile_columns : 4 * tile_columns;

// Floats from row to row of a tile's rows of 16 bits. A line more than a row has, so that rows do not meet in the same
// sets of the first cache.
constexpr std::size_t widened_row = usual_depth + 16;

// b's, rearranged: processors with AVX2 alone have smaller second caches.
constexpr std::size_t block_floats = (product_scratch - 12 * widened_row) / (16 / vector);
static_assert(block_floats + rows_together * usual_depth <= product_scratch);
static_assert(block_floats + tile_rows * widened_row <= product_scratch);

constexpr std::size_t least(std::size_t a, std::size_t b) { return a < b ? a : b; }
constexpr std::size_t parts(std::size_t whole, std::size_t part) { return (whole + part - 1) / part; }

// Floats from panel to panel. One step more than a panel has, so that the same steps of several panels do not meet in
// the same set of the first cache.
constexpr std::size_t panel_stride(std::size_t depth) { return (depth + 1) * tile_columns; }

[[gnu::always_inline]] inline void prefetch(const void* from) { _mm_prefetch(from, _MM_HINT_T1); }

// ---- a tile ----

// Where a tile reads an operand.
enum class Reads {
  in_place,    // of a only: each row's depth stands together
  rearranged,  // in scratch memory
  rearranges,  // in place, where each step of the depth stands together; and writes it rearranged to scratch memory
};

template <typename Number>
struct OperandOf {
  const Number* from;  // in place
  std::size_t step;    // in place: from row to row of a, or else from step to step of the depth
  float* scratch;
};
using TileOperand = OperandOf<float>;

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
    for (std::size_t i = 0; i < parts(tile_rows, 3); ++i)
      rows_[i] = a.from + (reads == Reads::in_place && 3 * i < rows ? 3 * i * step_ : 0);
  }

  [[gnu::always_inline]] void begin_step(std::size_t depth) const {
    if constexpr (reads == Reads::rearranges) {
      const float* const from = rows_[0] + depth * step_;
      prefetch(from + steps_ahead * step_);
      prefetch(from + steps_ahead * step_ + rows - 1);
      copy_rows_of_tile(from, scratch_ + depth * tile_rows);
    }
  }
  [[gnu::always_inline]] Floats at(std::size_t row, std::size_t depth) const {
    if constexpr (reads == Reads::in_place) return in_all_lanes(rows_[row / 3][row % 3 * step_ + depth]);
    if constexpr (reads == Reads::rearranged) return in_all_lanes(scratch_[depth * tile_rows + row]);
    if constexpr (reads == Reads::rearranges) return in_all_lanes(rows_[0][depth * step_ + row]);
  }

 private:
  const float* rows_[parts(tile_rows, 3)];  // every third row, so that few registers hold them all
  std::size_t step_;
  float* scratch_;
};

template <Reads reads>
[[gnu::always_inline]] inline Floats column_part(const TileOperand& b, std::size_t depth, std::size_t first) {
  float* const panel = b.scratch + depth * tile_columns + first;
  if constexpr (reads == Reads::rearranged) return load_aligned(panel);
  const float* const from = b.from + depth * b.step + first;
  prefetch(from + steps_ahead * b.step);
  const Floats value = load(from);
  store_aligned(panel, value);
  return value;
}

[[gnu::always_inline]] inline void store_sum(const Tile& tile, float* to, Floats sum) {
  if (tile.stream) return store_past_caches(to, sum);
  store(to, tile.add ? sum_of(load(to), sum) : sum);
}

template <std::size_t rows, Reads reads_a, Reads reads_b>
void multiply_tile(const Tile& tile) {
  const Factors<rows, reads_a> factors(tile.a);
  Floats sums[rows][2];
  for (auto& row : sums) row[0] = row[1] = zeros();
#pragma GCC unroll 2
  for (std::size_t depth = 0; depth < tile.depth; ++depth) {
    factors.begin_step(depth);
    const Floats left = column_part<reads_b>(tile.b, depth, 0);
    const Floats right = column_part<reads_b>(tile.b, depth, vector);
#pragma GCC unroll 12
    for (std::size_t row = 0; row < rows; ++row) {
      const Floats factor = factors.at(row, depth);
      sums[row][0] = product_and_sum(factor, left, sums[row][0]);
      sums[row][1] = product_and_sum(factor, right, sums[row][1]);
    }
  }
#pragma GCC unroll 12
  for (std::size_t row = 0; row < rows; ++row) {
    store_sum(tile, tile.c + row * tile.c_row, sums[row][0]);
    store_sum(tile, tile.c + row * tile.c_row + vector, sums[row][1]);
  }
}

using TileFunction = void (*)(const Tile&);

template <Reads a, std::size_t... rows_less_one>
TileFunction short_tile(std::size_t rows, std::index_sequence<rows_less_one...>) {
  constexpr TileFunction functions[] = {multiply_tile<rows_less_one + 1, a, Reads::rearranged>...};
  return functions[rows - 1];
}

template <Reads a>
TileFunction whole_tile(Reads b) {
  if constexpr (tiles_rearrange) {
    if (b == Reads::rearranges) return multiply_tile<tile_rows, a, Reads::rearranges>;
  }
  return multiply_tile<tile_rows, a, Reads::rearranged>;
}

// Tiles of fewer rows than tile_rows rearrange nothing.
TileFunction tile_function(std::size_t rows, Reads a, Reads b) {
  constexpr std::make_index_sequence<tile_rows - 1> fewer;
  if (rows < tile_rows && a == Reads::in_place) return short_tile<Reads::in_place>(rows, fewer);
  if (rows < tile_rows) return short_tile<Reads::rearranged>(rows, fewer);
  if (a == Reads::in_place) return whole_tile<Reads::in_place>(b);
  if constexpr (tiles_rearrange) {
    if (a == Reads::rearranges) return whole_tile<Reads::rearranges>(b);
  }
  return whole_tile<Reads::rearranged>(b);
}

// ---- rearranging apart from tiles ----

// A register's columns whose depth stands together, as rows of them. `stride`: from column to column.
template <typename Number>
void transpose(const Number* from, std::size_t stride, std::size_t columns, std::size_t depth, float* to) {
  Floats in[vector];
  for (std::size_t i = 0; i < vector; ++i) in[i] = i < columns ? load_first(from + i * stride, depth) : zeros();
  transpose_in_registers(in);
  for (std::size_t i = 0; i < least(depth, vector); ++i) store_aligned(to + i * tile_columns, in[i]);
}

// A panel of `columns` columns, and zeros, from a b whose depth stands together.
template <typename Number>
void rearrange_columns(const OperandOf<Number>& b, std::size_t stride, std::size_t columns, std::size_t depth) {
  for (std::size_t first = 0; first < tile_columns; first += vector) {
    const std::size_t left = columns > first ? columns - first : 0;
    for (std::size_t at = 0; at < depth; at += vector) {
      transpose(b.from + first * stride + at, stride, left, depth - at, b.scratch + at * tile_columns + first);
    }
  }
}

// The same from a b whose columns stand together, as panels of which the last may have fewer.
template <typename Number>
void rearrange_rows(const OperandOf<Number>& b, std::size_t columns, std::size_t depth) {
  const std::size_t stride = panel_stride(depth);
  for (std::size_t at = 0; at < depth; ++at) {
    const Number* const from = b.from + at * b.step;
    float* to = b.scratch + at * tile_columns;
    for (std::size_t first = 0; first < columns; first += tile_columns, to += stride) {
      prefetch(from + steps_ahead * b.step + first);
      const std::size_t left = columns - first;
      store_aligned(to, load_first(from + first, left));
      store_aligned(to + vector, load_first(from + first + vector, left > vector ? left - vector : 0));
    }
  }
}

// Rows of several tiles, the last of which may have fewer; from tile to tile in scratch memory `usual_depth` steps.
template <typename Number>
void rearrange_factors(const OperandOf<Number>& a, std::size_t rows, std::size_t depth) {
  const std::size_t whole = rows - rows % tile_rows, left = rows - whole;
  for (std::size_t at = 0; at < depth; ++at) {
    const Number* const from = a.from + at * a.step;
    float* const to = a.scratch + at * tile_rows;
    prefetch(from + steps_ahead * a.step);
    prefetch(from + steps_ahead * a.step + rows - 1);
    for (std::size_t row = 0; row < whole; row += tile_rows) copy_rows_of_tile(from + row, to + row * usual_depth);
    if (left > 0) store_first(to + whole * usual_depth, load_first(from + whole, left), left);
  }
}

// Rows of a of 16 bits, whose depth stands together, as floats. Memory is asked for a tile ahead.
template <typename Half>
void widen_rows(const OperandOf<Half>& a, std::size_t rows, std::size_t depth) {
  for (std::size_t row = 0; row < rows; ++row) {
    const Half* const from = a.from + row * a.step;
    float* const to = a.scratch + row * widened_row;
    for (std::size_t at = 0; at < depth; at += vector) {
      prefetch(from + tile_rows * a.step + at);
      store_aligned(to + at, load_first(from + at, depth - at));
    }
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

template <typename Number>
class BlockProduct {
 public:
  // stands: the block of b is in `scratch` already, rearranged.
  BlockProduct(const ProductOf<Number>& of, const Block& block, float* scratch, bool stands)
      : of_(of), block_(block), panels_(scratch), room_(scratch + block_floats), stands_(stands) {
    // A result is streamed when each of its lines is written whole, and once.
    stream_ = !of.add && block.depth == of.depth && of.c_column == 1 && of.c_row % 16 == 0 &&
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
    const OperandOf<Number> factors = factors_from(row), panel = panel_from(column);
    Tile tile{.a = as_a_tile_reads(factors),
              .b = as_a_tile_reads(panel),
              .depth = block_.depth,
              .c = of_.c + row * of_.c_row + (block_.first_column + column) * of_.c_column,
              .c_row = of_.c_row,
              .add = of_.add || block_.first_depth > 0,
              .stream = stream_};
    const Reads a = column == 0 ? first_reads_of_a(factors, row) : later_reads_of_a();
    const Reads b = row == 0 && !stands_ ? first_reads_of_b(panel, rows, column) : Reads::rearranged;
    const TileFunction function = tile_function(rows, a, b);
    if (columns == tile_columns && of_.c_column == 1) return function(tile);
    multiply_apart(tile, function, rows, columns);
  }

  bool in_place() const { return of_.a_depth == 1; }
  std::size_t factor_step() const { return in_place() ? of_.a_row : of_.a_depth; }
  Reads later_reads_of_a() const { return in_place() ? Reads::in_place : Reads::rearranged; }
  OperandOf<Number> factors_from(std::size_t row) const {
    return {of_.a + row * of_.a_row + block_.first_depth * of_.a_depth, factor_step(),
            in_place() ? room_ : room_ + row % rows_together * usual_depth};
  }
  OperandOf<Number> panel_from(std::size_t column) const {
    return {of_.b + block_.first_depth * of_.b_depth + (block_.first_column + column) * of_.b_column, of_.b_depth,
            panels_ + column / tile_columns * panel_stride(block_.depth)};
  }
  static TileOperand as_a_tile_reads(const OperandOf<Number>& of) {
    if constexpr (are_floats) return of;
    if constexpr (!are_floats) return {of.scratch, widened_row, of.scratch};
  }
  Reads first_reads_of_a(const OperandOf<Number>& a, std::size_t row) const {
    if (in_place()) {
      if constexpr (!are_floats) widen_rows(a, least(tile_rows, of_.rows - row), block_.depth);
      return Reads::in_place;
    }
    const std::size_t rows = least(rows_together, of_.rows - row);
    if (in_tiles && rows == tile_rows) return Reads::rearranges;
    if (row % rows_together == 0) rearrange_factors(a, rows, block_.depth);
    return Reads::rearranged;
  }
  Reads first_reads_of_b(const OperandOf<Number>& b, std::size_t rows, std::size_t column) const {
    const std::size_t left = block_.columns - column;
    if (of_.b_column != 1) {
      rearrange_columns(b, of_.b_column, least(tile_columns, left), block_.depth);
    } else if (in_tiles && rows == tile_rows && left >= tile_columns) {
      return Reads::rearranges;
    } else if (column % columns_together == 0) {
      rearrange_rows(b, least(columns_together, left), block_.depth);
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

  static constexpr bool are_floats = std::is_same_v<Number, float>;
  static constexpr bool in_tiles = tiles_rearrange && are_floats;

  const ProductOf<Number>& of_;
  const Block& block_;
  float* panels_;
  float* room_;  // rearranged rows of a
  bool stands_;
  bool stream_;
};

// All, where b's panels then fit, and nothing of a is rearranged.
std::size_t block_depth(const Product& of) {
  const bool fits = of.depth <= most_depth && panel_stride(of.depth) * parts(of.columns, tile_columns) <= block_floats;
  return fits && of.a_depth == 1 ? of.depth : least(usual_depth, of.depth);
}

std::size_t depth_of_blocks(const Product& of) { return of.block_depth == 0 ? block_depth(of) : of.block_depth; }
template <typename Half>
std::size_t depth_of_blocks(const ProductOf<Half>& of) {
  return least(usual_depth, of.depth);
}

template <typename Number>
void multiply(const ProductOf<Number>& of, float* scratch) {
  const std::size_t depth = depth_of_blocks(of);
  const std::size_t columns = block_floats / panel_stride(depth) * tile_columns;
  const bool stands = of.b_stands && depth >= of.depth && columns >= of.columns;  // one block has all of b
  for (std::size_t column = 0; column < of.columns; column += columns) {
    for (std::size_t first = 0; first < of.depth; first += depth) {
      const Block block{first, least(depth, of.depth - first), column, least(columns, of.columns - column)};
      BlockProduct(of, block, scratch, stands).run();
    }
  }
}

}  // namespace

const FloatProducts& TESSERA_FLOAT_PRODUCTS() {
  static constexpr FloatProducts functions{vector == 16 ? "AVX-512" : "AVX2", multiply<float>, multiply<bf16>,
                                           multiply<fp16>, block_depth};
  return functions;
}

}  // namespace tessera::nn
