// The contestant that has fp32 alone, and the list of all.
#include <cblas.h>

#include "products/contestants.hpp"

namespace bench {

namespace {

CBLAS_TRANSPOSE transposition(const Factor& factor) { return factor.column_stride == 1 ? CblasNoTrans : CblasTrans; }

blasint stride_of(const Factor& factor) {
  return static_cast<blasint>(factor.column_stride == 1 ? factor.row_stride : factor.column_stride);
}

void multiply(const PlainProduct& of) {
  cblas_sgemm(CblasRowMajor, transposition(of.a), transposition(of.b), static_cast<blasint>(of.m),
              static_cast<blasint>(of.n), static_cast<blasint>(of.k), 1.0f, static_cast<const float*>(of.a.data),
              stride_of(of.a), static_cast<const float*>(of.b.data), stride_of(of.b), 0.0f, static_cast<float*>(of.c),
              static_cast<blasint>(of.n));
}

}  // namespace

std::vector<Contestant> libraries(const PlainProduct& product, int threads) {
  std::vector<Contestant> result;
  if (product.type == tessera::DType::fp32) {
    result.push_back({"openblas", [product, threads] {
                        openblas_set_num_threads(threads);
                        multiply(product);
                        openblas_set_num_threads(1);
                      }});
  }
  if (auto onednn = onednn_product(product, threads)) result.push_back({"onednn", std::move(*onednn)});
  return result;
}

}  // namespace bench
