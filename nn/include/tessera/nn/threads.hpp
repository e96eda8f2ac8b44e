// How many host threads one matrix product may use.
#pragma once

namespace tessera::nn {

// For the whole process: programs call it once at start, with world.threads(), the same on every rank. The same number
// gives the same bits at each run; another number may split a product differently. Throws UsageError below 1.
void set_threads(int threads);

}  // namespace tessera::nn
