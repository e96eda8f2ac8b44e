// How each row loop is cut: what its pointers and counts are in a share.
#include "src/shared_rows.hpp"

#include <algorithm>

namespace tessera::nn {

namespace {

constexpr std::size_t least_elements = std::size_t{1} << 14;  // for which a helper is worth waking
constexpr std::size_t line = 64;                              // elements, so that no two threads write one line

std::size_t bytes_of(Format format) {
  switch (format) {
    case Format::fp64: return 8;
    case Format::fp32: return 4;
    case Format::bf16:
    case Format::fp16: break;
  }
  return 2;
}

// Which may be null.
const void* after(const void* from, std::size_t elements, Format format) {
  return from == nullptr ? nullptr : static_cast<const std::byte*>(from) + elements * bytes_of(format);
}
void* after(void* from, std::size_t elements, Format format) {
  return const_cast<void*>(after(static_cast<const void*>(from), elements, format));
}

// Returns the type of statistics, one for each row.
Format arithmetic_of(Format format) { return format == Format::fp64 ? Format::fp64 : Format::fp32; }

// `pointers`: members of the row.
template <typename Row, typename... Pointers>
void run_elements(void (*run)(const Row&), const Row& row, Pointers... pointers) {
  parallel::in_shares({.count = row.count, .least = least_elements, .unit = line},
                      [&](std::size_t begin, std::size_t end, std::size_t) {
                        Row share = row;
                        ((share.*pointers = after(row.*pointers, begin, row.format)), ...);
                        share.count = end - begin;
                        run(share);
                      });
}

}  // namespace

parallel::Shares shares_of_rows(std::size_t rows, std::size_t elements_of_each) {
  return {.count = rows, .least = least_elements / std::max<std::size_t>(1, elements_of_each) + 1};
}

parallel::Shares shares_of_columns(std::size_t columns, std::size_t rows) {
  return {.count = columns, .least = least_elements / std::max<std::size_t>(1, rows) + 1, .unit = line};
}

void run_shared(const RowTable& run, const ReluRow& row) {
  run_elements(run.relu, row, &ReluRow::y, &ReluRow::dy, &ReluRow::to);
}

void run_shared(const RowTable& run, const GeluRow& row) {
  run_elements(run.gelu, row, &GeluRow::x, &GeluRow::dy, &GeluRow::to);
}

void run_shared(const RowTable& run, const AddRow& row) {
  run_elements(run.add, row, &AddRow::a, &AddRow::b, &AddRow::y);
}

void run_shared(const RowTable& run, const SumRows& rows) {
  parallel::in_shares(shares_of_columns(rows.dim, rows.count), [&](std::size_t begin, std::size_t end, std::size_t) {
    SumRows share = rows;
    share.from = after(rows.from, begin, rows.format);
    share.to = after(rows.to, begin, rows.format);
    share.dim = end - begin;
    run.sum_rows(share);
  });
}

void run_shared(const RowTable& run, const DropoutRows& rows) {
  parallel::in_shares(shares_of_rows(rows.rows, rows.columns), [&](std::size_t begin, std::size_t end, std::size_t) {
    DropoutRows share = rows;
    share.mask.first_row += begin;
    share.residual = after(rows.residual, begin * rows.columns, rows.format);
    share.x = after(rows.x, begin * rows.columns, rows.format);
    share.y = after(rows.y, begin * rows.columns, rows.format);
    share.rows = end - begin;
    run.dropout(share);
  });
}

void run_shared(const RowTable& run, const LayerNormForwardRows& rows) {
  parallel::in_shares(shares_of_rows(rows.rows, rows.dim), [&](std::size_t begin, std::size_t end, std::size_t) {
    LayerNormForwardRows share = rows;
    share.x = after(rows.x, begin * rows.dim, rows.format);
    share.y = after(rows.y, begin * rows.dim, rows.format);
    share.mean = after(rows.mean, begin, arithmetic_of(rows.format));
    share.inverse = after(rows.inverse, begin, arithmetic_of(rows.format));
    share.rows = end - begin;
    run.layer_norm_forward(share);
  });
}

// The parameters' gradients first: dx may overwrite dy.
void run_shared(const RowTable& run, const LayerNormBackwardRows& rows) {
  if (rows.dweight != nullptr || rows.dbias != nullptr) {
    parallel::in_shares(shares_of_columns(rows.dim, rows.rows), [&](std::size_t begin, std::size_t end, std::size_t) {
      run.layer_norm_parameters(rows, begin, end);
    });
  }
  parallel::in_shares(shares_of_rows(rows.rows, rows.dim),
                      [&](std::size_t begin, std::size_t end, std::size_t) { run.layer_norm_input(rows, begin, end); });
}

}  // namespace tessera::nn
