// Runs the tests of CUDA devices, or skips them all, saying why, where there is none.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>
#include <fmt/format.h>

#include "tessera/device/cuda.hpp"

int main(int argc, char** argv) {
  constexpr int skipped = 77;  // meson's code for a test that did not run
  if (tessera::cuda_device_count() == 0) {
    fmt::print("skipped: {}\n", tessera::why_no_cuda());
    return skipped;
  }
  return doctest::Context(argc, argv).run();
}
