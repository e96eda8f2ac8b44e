// Matrix products through OpenBLAS. Calls from several threads at once are safe; each takes scratch memory of its own.
#include "src/gemm.hpp"

#include <cblas.h>
#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "tessera/base/error.hpp"
#include "tessera/nn/threads.hpp"

namespace tessera::nn {

namespace {

blasint extent(std::size_t value) {
  if (value > static_cast<std::size_t>(std::numeric_limits<blasint>::max())) {
    throw UsageError(fmt::format("a matrix with an extent of {} is larger than this BLAS can count", value));
  }
  return static_cast<blasint>(value);
}

CBLAS_TRANSPOSE transposition(const Operand& operand) { return operand.transposed ? CblasTrans : CblasNoTrans; }

// Row length of an operand as it stands in memory, of which the product sees rows × columns; never 0, which the BLAS
// refuses.
blasint leading(const Operand& operand, std::size_t rows, std::size_t columns) {
  return std::max<blasint>(1, extent(operand.transposed ? rows : columns));
}

}  // namespace

void gemm(const Gemm& product) {
  const auto [a, b, c, m, n, k, add] = product;
  if (m == 0 || n == 0) return;
  if (k == 0) {
    if (!add) std::fill_n(c, m * n, 0.0f);
    return;
  }
  cblas_sgemm(CblasRowMajor, transposition(a), transposition(b), extent(m), extent(n), extent(k), 1.0f, a.data,
              leading(a, m, k), b.data, leading(b, k, n), add ? 1.0f : 0.0f, c, extent(n));
}

void set_threads(int threads) {
  if (threads < 1) throw UsageError(fmt::format("nn::set_threads: threads must be at least 1, but is {}", threads));
  openblas_set_num_threads(threads);
}

}  // namespace tessera::nn
