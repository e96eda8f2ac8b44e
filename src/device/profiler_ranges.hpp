// Names on a profiler's time line (NVTX): what a CUDA stream issues between the two belongs to the range.
#pragma once

#include "tessera/device/stream.hpp"

namespace tessera::device {

// Whether a profiler listens: Nsight sets NVTX_INJECTION64_PATH. Elsewhere ranges are not worth their tasks.
bool profiled(Device device);

// On a CUDA stream. `name` must stay until the range has ended. Enqueue.
void begin_range(Stream& stream, const char* name);
void end_range(Stream& stream);

}  // namespace tessera::device
