// Blocks of threads on the CPU: each thread is a fiber, but a fiber goes on with the next thread when the last one
// ended without meeting a barrier, so kernels without barriers cost a function call per thread. Which block comes next,
// which warp, and which lane, is drawn from TESSERA_EMULATED_SEED (a number; 0 where it is not set).
//
// Under ThreadSanitizer every thread of a block is a fiber of its own that no order binds to another one but what the
// kernel has: __syncthreads(), __syncwarp(), and the beginning and the end of the grid. So it reports missing barriers,
// and races between blocks.
#pragma once

#include <functional>

#include "cuda_runtime.h"

namespace emulated {

// Runs every block of the grid in turn on the calling thread. A barrier that not all threads reach, a part of shared
// memory that is written beyond its end and the like end the program with a line that says so.
void run_grid(const cudaLaunchConfig_t& configuration, const std::function<void()>& thread);

}  // namespace emulated
