// A build without the CUDA half links this in its place: every way to a CUDA device says what is missing.
#include <fmt/format.h>

#include "device/cuda/cuda_queue.hpp"
#include "device/device_backend.hpp"
#include "device/device_memory.hpp"
#include "tessera/base/error.hpp"
#include "tessera/device/cuda.hpp"

namespace tessera {
namespace {

[[noreturn]] void refuse(const std::string& device) {
  throw UnavailableError(fmt::format(
      "device {} cannot be used: this build of Tessera has no CUDA half. Use the device \"cpu\", or a version "
      "of Tessera built with the CUDA toolkit (meson setup -Dcuda=enabled)",
      device));
}

}  // namespace

namespace device {

CudaQueue& cuda_queue(Stream& stream) {
  throw UsageError(fmt::format("stream \"{}\" is on {}: it has no CUDA stream behind it", stream.name(),
                               to_string(stream.device())));
}

void share_memory(int) { refuse("cuda"); }
void make_current(Device device) { refuse(to_string(device)); }

bool profiled(Device) { return false; }
void begin_range(Stream&, const char*) {}
void end_range(Stream&) {}

CudaMark::CudaMark(Device device) : device_(device) { refuse(to_string(device)); }
CudaMark::~CudaMark() = default;
bool CudaMark::complete() const { refuse(to_string(device_)); }
bool CudaMark::wait_on_host(std::chrono::steady_clock::time_point) const { refuse(to_string(device_)); }

CudaQueue::CudaQueue(Device device, StreamPriority) : device_(device), owned_(false) { refuse(to_string(device)); }
CudaQueue::~CudaQueue() = default;

void CudaQueue::record(CudaMark&) { refuse(to_string(device_)); }
void CudaQueue::wait(const CudaMark&) { refuse(to_string(device_)); }
void CudaQueue::copy(void*, const void*, Bytes) { refuse(to_string(device_)); }
void CudaQueue::fill(void*, int, Bytes) { refuse(to_string(device_)); }
void CudaQueue::synchronize() { refuse(to_string(device_)); }
void CudaQueue::add_check(const std::shared_ptr<QueueCheck>&) { refuse(to_string(device_)); }

}  // namespace device

bool has_cuda() { return false; }
int cuda_device_count() { return 0; }
std::string why_no_cuda() { return "this build of Tessera has no CUDA half"; }
void* native_stream(Stream& stream) { return device::cuda_queue(stream).native(); }

Device Device::cuda(int index) { refuse(fmt::format("cuda:{}", index)); }

namespace device {

std::unique_ptr<Stream::Implementation> make_cuda_stream(Device device, StreamOptions) { refuse(to_string(device)); }
std::unique_ptr<Event::Implementation> make_cuda_event(Device device, std::string) { refuse(to_string(device)); }
std::unique_ptr<DeviceStamps> make_cuda_stamps(Device device, std::size_t) { refuse(to_string(device)); }
std::unique_ptr<DeviceMemory> map_cuda_memory(Device device, Bytes) { refuse(to_string(device)); }
std::unique_ptr<DeviceMemory> map_pinned_memory(Device device, Bytes) { refuse(to_string(device)); }

}  // namespace device
}  // namespace tessera
