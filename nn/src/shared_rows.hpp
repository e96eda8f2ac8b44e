// The row loops, shared among the threads of an operation (parallel.hpp): each takes some of the rows, or some of the
// columns where sums run over rows. How many there are changes no bits.
#pragma once

#include <cstddef>
#include <string_view>

#include "src/operation.hpp"
#include "src/rows/active_rows.hpp"
#include "src/rows/row_table.hpp"
#include "tessera/device/parallel.hpp"

#pragma GCC visibility push(default)

namespace tessera::nn {

// Shares of rows of so many elements each, which are worth a thread.
parallel::Shares shares_of_rows(std::size_t rows, std::size_t elements_of_each);
// Shares of columns of so many rows; each begins at a multiple of 64.
parallel::Shares shares_of_columns(std::size_t columns, std::size_t rows);

void run_shared(const RowTable& run, const ReluRow& row);
void run_shared(const RowTable& run, const GeluRow& row);
void run_shared(const RowTable& run, const AddRow& row);
void run_shared(const RowTable& run, const SumRows& rows);
void run_shared(const RowTable& run, const DropoutRows& rows);
void run_shared(const RowTable& run, const LayerNormForwardRows& rows);
void run_shared(const RowTable& run, const LayerNormBackwardRows& rows);

// In the stream's order: by `kernel` on a CUDA device, else by the row loops.
template <typename T, auto kernel, typename Rows>
void enqueue_rows(Stream& stream, std::string_view layer, const Rows& rows) {
  if (on_cuda(stream)) return issue<T>(stream, layer, [rows](void* native) { kernel(native, rows); });
  stream.submit([rows, &run = active_rows()] { run_shared(run, rows); });
}

}  // namespace tessera::nn

#pragma GCC visibility pop
