// Products of the emulated device on OpenBLAS, in place of cuBLASLt's: column-major too, so that layouts, transposes
// and epilogues are what is checked. Epilogues are refused where cuBLASLt's rule on rows of eight elements refuses
// GELU's, and there none adds both a bias and a matrix.
#include <cblas.h>

#include <atomic>
#include <cmath>
#include <cstddef>
#include <vector>

#include "cuda_runtime.h"
#include "emulated_elements.hpp"
#include "src/cuda/product.hpp"

namespace tessera::nn::cuda {

namespace {

// In floats, without gaps.
std::vector<float> widened(Format format, const ColumnMajor& of) {
  std::vector<float> result;
  for (std::size_t column = 0; column < of.columns; ++column) {
    for (std::size_t row = 0; row < of.rows; ++row) result.push_back(get(format, of.data, column * of.leading + row));
  }
  return result;
}

double gelu(double x) { return x / 2.0 * (1.0 + std::tanh(0.79788456080286535588 * (x + 0.044715 * x * x * x))); }
double gelu_slope(double x) {
  const double t = std::tanh(0.79788456080286535588 * (x + 0.044715 * x * x * x));
  return (1.0 + t) / 2.0 + x / 2.0 * (1.0 - t * t) * 0.79788456080286535588 * (1.0 + 3.0 * 0.044715 * x * x);
}

std::atomic<std::size_t> products = 0;

class Run {
 public:
  explicit Run(const Product& product)
      : p(product),
        d_format(p.d_in_fp32 ? Format::fp32 : p.format),
        a(widened(p.format, p.a)),
        b(widened(p.format, p.b)) {}

  void operator()() {
    const bool adds = p.added.data != nullptr;
    std::vector<float> sums = adds ? widened(d_format, p.added) : std::vector<float>(p.d.rows * p.d.columns);
    const std::size_t depth = p.a.transposed ? p.a.rows : p.a.columns;
    const auto transposition = [](const ColumnMajor& of) { return of.transposed ? CblasTrans : CblasNoTrans; };
    const auto extent = [](std::size_t value) { return static_cast<blasint>(value); };
    cblas_sgemm(CblasColMajor, transposition(p.a), transposition(p.b), extent(p.d.rows), extent(p.d.columns),
                extent(depth), 1.0f, a.data(), extent(p.a.rows), b.data(), extent(p.b.rows), adds ? 1.0f : 0.0f,
                sums.data(), extent(p.d.rows));
    for (std::size_t column = 0; column < p.d.columns; ++column) {
      for (std::size_t row = 0; row < p.d.rows; ++row) finish(row, column, sums[column * p.d.rows + row]);
    }
    if (p.epilogue == Epilogue::bias_gradient) sum_b(depth);
  }

 private:
  void finish(std::size_t row, std::size_t column, float sum) {
    void* const d = const_cast<void*>(p.d.data);
    const std::size_t aux = column * p.aux.leading + row;
    if (p.epilogue == Epilogue::bias || p.epilogue == Epilogue::gelu_bias) sum += get(p.format, p.vector, row);
    if (p.epilogue == Epilogue::gelu_bias) {
      set(p.format, const_cast<void*>(p.aux.data), aux, sum);
      sum = static_cast<float>(gelu(static_cast<double>(sum)));
    }
    if (p.epilogue == Epilogue::gelu_gradient) {
      sum *= static_cast<float>(gelu_slope(static_cast<double>(get(p.format, p.aux.data, aux))));
    }
    set(d_format, d, column * p.d.leading + row, sum);
  }

  void sum_b(std::size_t depth) {
    for (std::size_t column = 0; column < p.d.columns; ++column) {
      float sum = 0.0f;
      for (std::size_t k = 0; k < depth; ++k) sum += b[p.b.transposed ? k * p.b.rows + column : column * p.b.rows + k];
      set(p.format, p.vector, column, sum);
    }
  }

  Product p;
  Format d_format;
  std::vector<float> a;
  std::vector<float> b;
};

// This is the nth one of a batch.
Product nth(const Product& product, std::size_t n) {
  const auto later = [n](const void* data, std::size_t step, Format format) -> const void* {
    return static_cast<const std::byte*>(data) + n * step * (format == Format::fp32 ? 4 : 2);
  };
  Product of = product;
  of.a.data = later(of.a.data, of.batch.a_step, of.format);
  of.b.data = later(of.b.data, of.batch.b_step, of.format);
  of.d.data = later(of.d.data, of.batch.d_step, of.d_in_fp32 ? Format::fp32 : of.format);
  return of;
}

}  // namespace

void require_products() {}
std::string products_in_words() { return "by OpenBLAS"; }

// Calls of multiply() so far, which tests count beside launches of kernels.
std::size_t products_so_far() { return products; }

bool multiply(void* native, const Product& product) {
  ++products;
  const bool adds = product.added.data != nullptr;
  const bool simple = product.epilogue == Epilogue::none || (product.epilogue == Epilogue::bias && !adds);
  if (!simple && product.d.leading % 8 != 0) return false;
  const cudaLaunchConfig_t one{dim3(1), dim3(1), 0, static_cast<cudaStream_t>(native)};
  return ::emulated::launch(one, [product] {
           for (std::size_t n = 0; n < product.batch.count; ++n) Run{nth(product, n)}();
         }) == cudaSuccess;
}

}  // namespace tessera::nn::cuda
