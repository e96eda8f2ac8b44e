// One block of threads on the CPU: each thread is a fiber, but a fiber goes on with the next thread when the last one
// ended without meeting a barrier, so kernels without barriers cost a function call per thread.
#pragma once

#include <functional>

#include "cuda_runtime.h"

namespace emulated {

// Runs every block of the grid in turn on the calling thread. A barrier that not all threads reach ends the program,
// with a line that says so: on a GPU it would hang.
void run_grid(const cudaLaunchConfig_t& configuration, const std::function<void()>& thread);

}  // namespace emulated
