// User code needs these of a CUDA device beside Stream, Event and Arena. The header needs no CUDA toolkit, and in a
// build without the CUDA half the functions say what is missing.
#pragma once

#include <string>

#include "tessera/device/device.hpp"
#include "tessera/device/stream.hpp"

#pragma GCC visibility push(default)

namespace tessera {

// Whether this build has the CUDA half.
bool has_cuda();

// CUDA devices that this process can use: 0 without a driver, without a device, or in a build without the CUDA half.
int cuda_device_count();

// Why cuda_device_count() is 0, in one sentence; empty when it is not.
std::string why_no_cuda();

// The cudaStream_t behind a CUDA stream. Throws UsageError for a stream of the CPU. Work goes to it from inside of a
// task, `stream.submit([native] { … })`: tasks run on the host, in order, with the stream's device current, and return
// once they have enqueued. cuda_launch.cuh has a launch() for them.
void* native_stream(Stream& stream);

}  // namespace tessera

#pragma GCC visibility pop
