// What a build without the CUDA half links in its place: every way to a CUDA device says what is missing.
#include <fmt/format.h>

#include "device/device_memory.hpp"
#include "device/event_implementation.hpp"
#include "device/stream_implementation.hpp"
#include "tessera/base/error.hpp"

namespace tessera {
namespace {

[[noreturn]] void refuse(const std::string& device) {
  throw UnavailableError(fmt::format(
      "device {} cannot be used: this build of Tessera has no CUDA half. Use the device \"cpu\", or a version "
      "of Tessera built with the CUDA toolkit (meson setup -Dcuda=enabled)",
      device));
}

}  // namespace

Device Device::cuda(int index) { refuse(fmt::format("cuda:{}", index)); }

namespace device {

std::unique_ptr<Stream::Implementation> make_cuda_stream(Device device, StreamOptions) { refuse(to_string(device)); }
std::unique_ptr<Event::Implementation> make_cuda_event(Device device, std::string) { refuse(to_string(device)); }
std::unique_ptr<DeviceMemory> map_cuda_memory(Device device, Bytes) { refuse(to_string(device)); }

}  // namespace device
}  // namespace tessera
