// How many host threads one operation of a layer may use.
#pragma once

#pragma GCC visibility push(default)

namespace tessera::nn {

// parallel::set_threads (parallel.hpp), and OpenBLAS keeps to the calling thread: programs call it once at start, with
// world.threads(), the same on every rank. The same number gives the same bits at each run. Where products are
// tessera's own (processor.hpp) any number gives the same; those of libraries may differ in how they are cut. Each
// helper keeps scratch memory of its own beside the activations', 1 MiB for products, 3 MiB more for those of 16-bit
// types, and that of one attention head. Throws UsageError below 1.
void set_threads(int threads);

}  // namespace tessera::nn

#pragma GCC visibility pop
