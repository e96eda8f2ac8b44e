// The profiler's ranges of the emulated device: nobody looks at them, but they must nest.
#pragma once

#include <cstdio>
#include <cstdlib>

inline thread_local int emulated_nvtx_depth = 0;

inline int nvtxRangePushA(const char*) { return emulated_nvtx_depth++; }
inline int nvtxRangePop() {
  if (emulated_nvtx_depth == 0) {
    std::fputs("a profiler's range ended that had not begun\n", stderr);
    std::abort();
  }
  return --emulated_nvtx_depth;
}
