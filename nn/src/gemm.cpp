// Matrix products: by products/ what those in use (choice.hpp) have, else through OpenBLAS. A large one is cut into as
// many as it has threads, by rows or columns of its result. Calls from several threads at once are safe; each has
// scratch memory of its own.
#include "src/gemm.hpp"

#include <cblas.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <new>

#include "src/exported.hpp"
#include "src/operation.hpp"
#include "src/panel.hpp"
#include "src/products/choice.hpp"
#include "src/products/onednn.hpp"
#include "src/products/product.hpp"
#include "src/rows/active_rows.hpp"
#include "tessera/base/error.hpp"
#include "tessera/device/parallel.hpp"
#include "tessera/nn/threads.hpp"

namespace tessera::nn {

namespace {

// Extents of the tiles in which 16-bit operands become floats: large enough that the casts cost a hundredth of the
// products, small enough that three of them (3 MiB) do not count beside the activations.
constexpr std::size_t tile = 512;

// A matrix of more numbers does not stay in a core's caches. Such a result in bf16 goes past them.
constexpr std::size_t cached_numbers = 1 << 21;

blasint extent(std::size_t value) {
  if (value > static_cast<std::size_t>(std::numeric_limits<blasint>::max())) {
    throw UsageError(fmt::format("a matrix with an extent of {} is larger than this BLAS can count", value));
  }
  return static_cast<blasint>(value);
}

template <typename T>
CBLAS_TRANSPOSE transposition(const Operand<T>& operand) {
  return operand.transposed ? CblasTrans : CblasNoTrans;
}

// Elements from row to row of an operand of which the product sees rows × columns; never 0, which the BLAS refuses.
template <typename T>
std::size_t stride_of(const Operand<T>& operand, std::size_t rows, std::size_t columns) {
  if (operand.stride != 0) return operand.stride;
  return std::max<std::size_t>(1, operand.transposed ? rows : columns);
}

void call_blas(const Gemm<float>& of) {
  cblas_sgemm(CblasRowMajor, transposition(of.a), transposition(of.b), extent(of.m), extent(of.n), extent(of.k), 1.0f,
              of.a.data, extent(of.a.stride), of.b.data, extent(of.b.stride), of.add ? 1.0f : 0.0f, of.c,
              extent(of.c_stride));
}

// Products of floats that are cut into shares are numbered from 1.
constexpr std::uint64_t no_number = 0;

constexpr std::align_val_t page{4096};

struct FreeRoom {
  void operator()(float* memory) const { ::operator delete(memory, page); }
};
using Room = std::unique_ptr<float, FreeRoom>;
Room take_room(std::size_t floats) { return Room(static_cast<float*>(::operator new(floats * sizeof(float), page))); }

// The thread's scratch memory for products: taken at its first product, kept as long as it lives.
struct ProductRoom {
  Room floats = take_room(product_scratch);
  std::uint64_t product = no_number;  // whose b stands in it, rearranged
};
ProductRoom& room_of_thread() {
  thread_local ProductRoom room;
  return room;
}

// The same memory for a product whose b nobody needs again.
float* product_room() {
  ProductRoom& room = room_of_thread();
  room.product = no_number;
  return room.floats.get();
}

// And for three tiles, when it is the helper of another: that one has the caller's.
float* helper_room() {
  thread_local const Room room = take_room(3 * tile * tile);
  return room.get();
}

// Where a product's sums go, and its extents.
struct Sums {
  float* data;
  std::size_t stride;  // from row to row
  std::size_t rows;
  std::size_t columns;
  std::size_t depth;
  bool add;
};

// Describes a product of operands whose strides are known.
template <typename Number>
ProductOf<Number> product_of(const Operand<Number>& a, const Operand<Number>& b, const Sums& c) {
  return {.a = a.data,
          .a_row = a.transposed ? 1 : a.stride,
          .a_depth = a.transposed ? a.stride : 1,
          .b = b.data,
          .b_depth = b.transposed ? 1 : b.stride,
          .b_column = b.transposed ? b.stride : 1,
          .c = c.data,
          .c_row = c.stride,
          .c_column = 1,
          .rows = c.rows,
          .columns = c.columns,
          .depth = c.depth,
          .add = c.add};
}

// cᵀ = bᵀ · aᵀ.
template <typename Number>
ProductOf<Number> transposed(const ProductOf<Number>& of) {
  return {.a = of.b,
          .a_row = of.b_column,
          .a_depth = of.b_depth,
          .b = of.a,
          .b_depth = of.a_depth,
          .b_column = of.a_row,
          .c = of.c,
          .c_row = of.c_column,
          .c_column = of.c_row,
          .rows = of.columns,
          .columns = of.rows,
          .depth = of.depth,
          .add = of.add};
}

// Where both operands would have to be transposed on the way, the smaller one is: that is b, and it is rearranged.
template <typename Number>
ProductOf<Number> smaller_as_b(const ProductOf<Number>& of, bool a_is_smaller) {
  const bool by_depth = of.a_depth == 1 && of.b_depth == 1;
  return by_depth && a_is_smaller ? transposed(of) : of;
}

Product arranged(const Gemm<float>& of, bool a_is_smaller) {
  return smaller_as_b(product_of(of.a, of.b, {of.c, of.c_stride, of.m, of.n, of.k, of.add}), a_is_smaller);
}

// A product, and its number if several calls compute it.
template <typename T>
struct Whole {
  const Gemm<T>& product;
  std::uint64_t number = no_number;
};

// Returns the thread's scratch memory, and has the product find its b there if a part of the same whole has left it.
float* room_for(Product& part, const Product& whole, std::uint64_t number) {
  ProductRoom& room = room_of_thread();
  const bool has_all_of_b = part.b == whole.b && part.columns == whole.columns;
  const std::uint64_t left = has_all_of_b ? number : no_number;
  part.b_stands = left != no_number && room.product == left;
  room.product = left;
  return room.floats.get();
}

// A part of `whole`, which may be all of it: the whole decides how sums are formed.
void multiply_floats(const Gemm<float>& of, const Whole<float>& whole) {
  for (const std::size_t each : {of.m, of.n, of.k, of.a.stride, of.b.stride, of.c_stride}) extent(each);
  const FloatProducts* const products = active_float_products();
  if (products == nullptr) return call_blas(of);
  const bool a_is_smaller = whole.product.m < whole.product.n;
  Product product = arranged(of, a_is_smaller);
  const Product all = arranged(whole.product, a_is_smaller);
  product.block_depth = products->block_depth(all);
  products->multiply(product, room_for(product, all, whole.number));
}

void call_blas(const Gemm<double>& of) {
  cblas_dgemm(CblasRowMajor, transposition(of.a), transposition(of.b), extent(of.m), extent(of.n), extent(of.k), 1.0,
              of.a.data, extent(of.a.stride), of.b.data, extent(of.b.stride), of.add ? 1.0 : 0.0, of.c,
              extent(of.c_stride));
}

struct Cut {
  std::size_t begin;
  std::size_t count;
};

Cut cut(std::size_t begin, std::size_t all) { return {begin, std::min(tile, all - begin)}; }

// Part of an operand as the product means it, in floats, standing as the operand does.
template <typename T>
Operand<float> widened(const Operand<T>& from, Cut rows, Cut columns, float* to) {
  if (from.transposed) std::swap(rows, columns);
  const Columns<const T> part{from.data + rows.begin * from.stride + columns.begin, from.stride, rows.count,
                              columns.count};
  load_panel(active_rows(), part, to);
  return {to, from.transposed, columns.count};
}

// A TilePart is what one tile of c, in floats, gains from a part of the depth.
struct TilePart {
  Cut rows;
  Cut columns;
  Cut depth;
  float* sums;  // [rows, columns]
  bool add;
};

template <typename T>
void add_widened(const Gemm<T>& of, const TilePart& part) {
  float* const a = part.sums + part.rows.count * part.columns.count;
  float* const b = a + part.rows.count * std::min(tile, of.k);
  const Gemm<float> floats{.a = widened(of.a, part.rows, part.depth, a),
                           .b = widened(of.b, part.depth, part.columns, b),
                           .c = part.sums,
                           .m = part.rows.count,
                           .n = part.columns.count,
                           .k = part.depth.count,
                           .add = part.add,
                           .c_stride = part.columns.count};
  multiply_floats(floats, {floats});
}

// An operand from an element on, whose numbers may be given as `Number`.
template <typename Number, typename T>
Operand<Number> operand_from(const Operand<T>& operand, std::size_t row, std::size_t column) {
  if (operand.transposed) std::swap(row, column);
  return {reinterpret_cast<const Number*>(operand.data + row * operand.stride + column), operand.transposed,
          operand.stride};
}

// A part of a product of 16 bits as products/ multiply it.
template <typename Number, typename T>
ProductOf<Number> part_of(const Gemm<T>& of, const TilePart& part) {
  const ProductOf<Number> product =
      product_of(operand_from<Number>(of.a, part.rows.begin, part.depth.begin),
                 operand_from<Number>(of.b, part.depth.begin, part.columns.begin),
                 {part.sums, part.columns.count, part.rows.count, part.columns.count, part.depth.count, part.add});
  return smaller_as_b(product, of.m < of.n);
}

PairProduct pairs_of(const Gemm<bf16>& of, const TilePart& part) { return part_of<std::uint16_t>(of, part); }

void add_halves(const FloatProducts& by, const Gemm<bf16>& of, const TilePart& part) {
  by.multiply_bf16(part_of<bf16>(of, part), product_room());
}
void add_halves(const FloatProducts& by, const Gemm<fp16>& of, const TilePart& part) {
  by.multiply_fp16(part_of<fp16>(of, part), product_room());
}

const PairProducts& pair_products() {
  static const PairProducts& found = *find_pair_products();
  return found;
}

// Without widening, where the processor multiplies bf16; own products widen what they rearrange.
template <typename T>
void add_product(const Gemm<T>& of, const TilePart& part) {
  if constexpr (std::is_same_v<T, bf16>) {
    if (active_product_set() == ProductSet::avx512_bf16) {
      return pair_products().multiply(pairs_of(of, part), product_room());
    }
  }
  if (const FloatProducts* const own = active_float_products()) return add_halves(*own, of, part);
  add_widened(of, part);
}

// A tile of c whose sums one part of the depth is all of: rounded as they leave the registers. False: not here.
template <typename T>
bool multiply_rounded(const Gemm<T>& of, const TilePart& all, bool stream) {
  if constexpr (std::is_same_v<T, bf16>) {
    if (of.k > tile || of.add || active_product_set() != ProductSet::avx512_bf16) return false;
    const PairProduct product = pairs_of(of, all);
    if (product.c_column != 1) return false;
    auto* const c = reinterpret_cast<std::uint16_t*>(of.c + all.rows.begin * of.c_stride + all.columns.begin);
    pair_products().multiply_rounded(product, {c, of.c_stride, stream}, product_room());
    return true;
  }
  return false;
}

// One tile of c: summed up in floats over all of k, then stored; past the caches, where that can be, if `stream`.
template <typename T>
void multiply_tile(const Gemm<T>& of, Cut rows, Cut columns, bool stream) {
  float* const sums = of.scratch;
  if (multiply_rounded(of, {rows, columns, cut(0, of.k), sums, false}, stream)) return;
  const Columns<T> target{of.c + rows.begin * of.c_stride + columns.begin, of.c_stride, rows.count, columns.count};
  if (of.add) load_panel(active_rows(), Columns<const T>{target.data, target.stride, target.rows, target.count}, sums);
  for (std::size_t first = 0; first < of.k; first += tile) {
    add_product(
        of, {.rows = rows, .columns = columns, .depth = cut(first, of.k), .sums = sums, .add = of.add || first > 0});
  }
  store_panel<T>(active_rows(), {sums, columns.count}, target, nullptr);
}

// A part of `whole`, which may be all of it.
template <typename T>
void multiply(const Gemm<T>& of, const Whole<T>& whole) {
  if constexpr (std::is_same_v<T, float>) {
    multiply_floats(of, whole);
  } else if constexpr (std::is_same_v<T, double>) {
    call_blas(of);
  } else {
    if constexpr (std::is_same_v<T, bf16>) {
      if (active_product_set() == ProductSet::onednn) return onednn::multiply(of);
    }
    for (std::size_t row = 0; row < of.m; row += tile) {
      for (std::size_t column = 0; column < of.n; column += tile) {
        multiply_tile(of, cut(row, of.m), cut(column, of.n), whole.product.m * whole.product.n > cached_numbers);
      }
    }
  }
}

// Rows of the product's result, or columns, whichever are more.
template <typename T>
Gemm<T> part_of(const Gemm<T>& whole, bool by_rows, std::size_t begin, std::size_t end) {
  const auto from = [begin](const Operand<T>& operand, bool each_is_a_row) {
    return Operand<T>{operand.data + begin * (each_is_a_row ? operand.stride : 1), operand.transposed, operand.stride};
  };
  Gemm<T> part = whole;
  if (by_rows) {
    part.a = from(whole.a, !whole.a.transposed);
    part.c += begin * whole.c_stride;
    part.m = end - begin;
  } else {
    part.b = from(whole.b, whole.b.transposed);
    part.c += begin;
    part.n = end - begin;
  }
  return part;
}

template <typename T>
parallel::Shares shares_of_product(const Gemm<T>& whole) {
  constexpr std::size_t least_work = std::size_t{1} << 20;  // multiplications, for which a helper is worth waking
  constexpr std::size_t unit = 96;                          // whole tiles, of 6 and of 16, or of 12 and of 32
  const std::size_t work_of_each = std::min(whole.m, whole.n) * whole.k;
  // Shares of a large product wait for memory, and one of them for a core when gradients are reduced beside it: smaller
  // ones even that out. Others stay in its caches, and would only begin more often.
  const bool is_large = std::max({whole.m * whole.n, whole.m * whole.k, whole.n * whole.k}) > cached_numbers;
  return {.count = std::max(whole.m, whole.n),
          .least = least_work / work_of_each + 1,
          .unit = unit,
          .turns = is_large ? 6u : 1u};
}

// The calling thread has the product's scratch memory, a helper its own.
template <typename T>
void multiply_part(Gemm<T> part, const Whole<T>& whole, std::size_t worker) {
  if (worker > 0 && gemm_scratch<T>(part.m, part.n, part.k) > 0) part.scratch = helper_room();
  multiply(part, whole);
}

template <typename T>
void multiply_in_shares(const Gemm<T>& whole) {
  static std::atomic<std::uint64_t> last = no_number;
  const parallel::Shares shares = shares_of_product(whole);
  const bool is_cut = std::is_same_v<T, float> && parallel::shares_of(shares) > 1;
  const std::uint64_t number = is_cut ? last.fetch_add(1, std::memory_order_relaxed) + 1 : no_number;
  const bool by_rows = whole.m >= whole.n;
  parallel::in_shares(shares, [&](std::size_t begin, std::size_t end, std::size_t worker) {
    multiply_part(part_of(whole, by_rows, begin, end), {whole, number}, worker);
  });
}

// With strides that are known.
template <typename T>
Gemm<T> completed(Gemm<T> of) {
  if (of.c_stride == 0) of.c_stride = of.n;
  of.a.stride = stride_of(of.a, of.m, of.k);
  of.b.stride = stride_of(of.b, of.k, of.n);
  return of;
}

Gemm<bf16> nth(const GemmBatch<bf16>& batch, std::size_t n) {
  Gemm<bf16> of = batch.first;
  of.a.data += n * batch.a_step;
  of.b.data += n * batch.b_step;
  of.c += n * batch.c_step;
  return of;
}

// How many of a batch threads take whole. Our own products have the same bits however they are cut, so as many as give
// all threads alike; a library's only where it would not be cut alone.
std::size_t taken_whole(const GemmBatch<bf16>& batch) {
  if (parallel::shares_of(shares_of_product(batch.first)) == 1) return batch.count;
  const ProductSet set = active_product_set();
  if (set == ProductSet::openblas || set == ProductSet::onednn) return 0;
  return batch.count - batch.count % static_cast<std::size_t>(parallel::threads());
}

}  // namespace

template <typename T>
void gemm(const Gemm<T>& product) {
  if (product.m == 0 || product.n == 0) return;
  const Gemm<T> of = completed(product);
  if (of.k == 0) {
    for (std::size_t row = 0; !of.add && row < of.m; ++row) std::fill_n(of.c + row * of.c_stride, of.n, T{});
    return;
  }
  multiply_in_shares(of);
}

TESSERA_EXPORTED void gemm(const GemmBatch<bf16>& batch) {
  const Gemm<bf16>& first = batch.first;
  const bool is_empty = first.m == 0 || first.n == 0 || first.k == 0;
  const std::size_t whole = is_empty ? 0 : taken_whole(batch);
  parallel::in_shares({.count = whole}, [&](std::size_t begin, std::size_t end, std::size_t worker) {
    for (std::size_t n = begin; n < end; ++n) {
      const Gemm<bf16> of = completed(nth(batch, n));
      multiply_part(of, {of}, worker);
    }
  });
  for (std::size_t n = whole; n < batch.count; ++n) gemm(nth(batch, n));
}

template <typename T>
std::size_t gemm_scratch(std::size_t m, std::size_t n, std::size_t k) {
  if (std::is_same_v<T, Arithmetic<T>>) return 0;
  const std::size_t rows = std::min(tile, m);
  const std::size_t columns = std::min(tile, n);
  const std::size_t depth = std::min(tile, k);
  return rows * columns + rows * depth + depth * columns;
}

#define TESSERA_GEMM(T)                                \
  template TESSERA_EXPORTED void gemm(const Gemm<T>&); \
  template TESSERA_EXPORTED std::size_t gemm_scratch<T>(std::size_t, std::size_t, std::size_t);
TESSERA_FOR_EACH_ELEMENT(TESSERA_GEMM)

void set_threads(int threads) {
  if (threads < 1) throw UsageError(fmt::format("nn::set_threads: threads must be at least 1, but is {}", threads));
  parallel::set_threads(threads);
  openblas_set_num_threads(1);  // its threads are the process's, so ranks would wait for each other's products
}

}  // namespace tessera::nn
