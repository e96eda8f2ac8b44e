// Products over cuBLASLt's answers, without a device: over a library that only has the names (cublas_lt_symbols.cpp,
// which stands first where libraries are looked for) and over calls of CUDA's that do nothing.
#include <cuda_runtime.h>
#include <doctest/doctest.h>

#include <cstdlib>

#include "src/cuda/product.hpp"
#include "tessera/base/error.hpp"

using namespace tessera;
using namespace tessera::nn::cuda;

extern "C" {
cudaError_t cudaGetDevice(int* device) { return *device = 0, cudaSuccess; }
cudaError_t cudaEventCreate(cudaEvent_t*) { return cudaSuccess; }
cudaError_t cudaEventDestroy(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventElapsedTime(float*, cudaEvent_t, cudaEvent_t) { return cudaSuccess; }
const char* cudaGetErrorString(cudaError_t) { return ""; }
}

namespace {

constexpr const char* invalid_value = "7";
constexpr const char* not_supported = "15";

// Each test asks for other columns: what was prepared once is kept.
Product product_of(std::size_t columns, Epilogue epilogue) {
  static float memory[64];
  return {.format = tessera::nn::Format::fp32,
          .a = {memory, 2, 2, 2},
          .b = {memory, 2, columns, 2},
          .d = {memory, 2, columns, 2},
          .epilogue = epilogue,
          .vector = memory};
}

}  // namespace

TEST_CASE("an answer that there is no algorithm sends a product with an epilogue back, and fails one without") {
  ::setenv("TESSERA_TEST_HEURISTIC", not_supported, 1);
  CHECK_FALSE(multiply(nullptr, product_of(3, Epilogue::bias)));
  CHECK_THROWS_WITH_AS(multiply(nullptr, product_of(3, Epilogue::none)),
                       "cuBLASLt has no algorithm for a product of 3 x 2 over 2 on cuda:0", Error);
}

TEST_CASE("an answer that a product was asked for in a wrong way is no answer that there is no algorithm") {
  ::setenv("TESSERA_TEST_HEURISTIC", invalid_value, 1);
  for (const Epilogue epilogue : {Epilogue::bias, Epilogue::none}) {
    CHECK_THROWS_WITH_AS(multiply(nullptr, product_of(5, epilogue)),
                         "cublasLtMatmulAlgoGetHeuristic failed: CUBLAS_STATUS_INVALID_VALUE", Error);
  }
}
