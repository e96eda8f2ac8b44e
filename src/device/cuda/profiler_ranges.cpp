// Ranges are the issuing thread's: pushed and popped by tasks, in the stream's order.
#include "device/device_backend.hpp"

#include <nvtx3/nvToolsExt.h>

#include <cstdlib>

namespace tessera::device {

bool profiled(Device device) {
  return device.kind() == DeviceKind::cuda && std::getenv("NVTX_INJECTION64_PATH") != nullptr;
}

void begin_range(Stream& stream, const char* name) {
  stream.submit([name] { nvtxRangePushA(name); });
}

void end_range(Stream& stream) {
  stream.submit([] { nvtxRangePop(); });
}

}  // namespace tessera::device
