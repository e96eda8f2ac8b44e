// A library with the names of cuBLASLt's functions, for the test of what becomes of its answers: its heuristic
// answers with the number in TESSERA_TEST_HEURISTIC and proposes nothing, and its other functions do nothing.
#include <cstdlib>

extern "C" {

int cublasLtMatmulAlgoGetHeuristic(void*, void*, void*, void*, void*, void*, void*, int, void*, int* proposals) {
  *proposals = 0;
  return std::atoi(std::getenv("TESSERA_TEST_HEURISTIC"));
}

const char* cublasLtGetStatusString(int status) {
  return status == 7 ? "CUBLAS_STATUS_INVALID_VALUE" : "another status";
}

#define TESSERA_NO_FUNCTION(name) \
  int name() { return 0; }
TESSERA_NO_FUNCTION(cublasLtCreate)
TESSERA_NO_FUNCTION(cublasLtDestroy)
TESSERA_NO_FUNCTION(cublasLtMatmulDescCreate)
TESSERA_NO_FUNCTION(cublasLtMatmulDescDestroy)
TESSERA_NO_FUNCTION(cublasLtMatmulDescSetAttribute)
TESSERA_NO_FUNCTION(cublasLtMatrixLayoutCreate)
TESSERA_NO_FUNCTION(cublasLtMatrixLayoutSetAttribute)
TESSERA_NO_FUNCTION(cublasLtMatrixLayoutDestroy)
TESSERA_NO_FUNCTION(cublasLtMatmulPreferenceCreate)
TESSERA_NO_FUNCTION(cublasLtMatmulPreferenceDestroy)
TESSERA_NO_FUNCTION(cublasLtMatmulPreferenceSetAttribute)
TESSERA_NO_FUNCTION(cublasLtMatmul)
TESSERA_NO_FUNCTION(cublasLtGetVersion)
}
