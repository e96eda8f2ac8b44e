// Streams and events of the CUDA runtime.
#include "device/cuda/cuda_queue.hpp"

#include <algorithm>
#include <thread>

#include "device/cuda/cuda_call.hpp"

namespace tessera::device {
namespace {

constexpr std::chrono::microseconds least_poll{20}, most_poll{200};

cudaStream_t stream_of(void* native) { return static_cast<cudaStream_t>(native); }
cudaEvent_t event_of(void* native) { return static_cast<cudaEvent_t>(native); }

int cuda_priority(Device device, StreamPriority priority) {
  int least = 0;
  int greatest = 0;
  check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "cudaDeviceGetStreamPriorityRange", device);
  return priority == StreamPriority::high ? greatest : least;
}

}  // namespace

CudaMark::CudaMark(Device device) : device_(device) {
  make_current(device);
  cudaEvent_t event = nullptr;
  check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreateWithFlags", device);
  event_ = event;
}

CudaMark::~CudaMark() { static_cast<void>(cudaEventDestroy(event_of(event_))); }

bool CudaMark::complete() const {
  const cudaError_t status = cudaEventQuery(event_of(event_));
  if (status == cudaErrorNotReady) {
    static_cast<void>(cudaGetLastError());  // else PyTorch takes it for an error of its next launch
    return false;
  }
  check(status, "cudaEventQuery", device_);
  return true;
}

// Polled, because the runtime's own wait has no deadline; the less often, the longer it takes.
bool CudaMark::wait_on_host(std::chrono::steady_clock::time_point deadline) const {
  const auto begin = std::chrono::steady_clock::now();
  while (!complete()) {
    const auto now = std::chrono::steady_clock::now();
    if (now >= deadline) return false;
    std::this_thread::sleep_for(std::clamp<std::chrono::nanoseconds>((now - begin) / 16, least_poll, most_poll));
  }
  return true;
}

namespace {

void* new_stream(Device device, StreamPriority priority) {
  make_current(device);
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, cuda_priority(device, priority)),
        "cudaStreamCreateWithPriority", device);
  return stream;
}

}  // namespace

CudaQueue::CudaQueue(Device device, StreamPriority priority) : CudaQueue(device, new_stream(device, priority)) {
  owned_ = true;
}

CudaQueue::CudaQueue(Device device, void* stream) : device_(device), stream_(stream), owned_(false) {
  make_current(device);
  check(cudaMalloc(&workspace_, workspace_bytes.count()), "cudaMalloc of a stream's workspace", device);
}

CudaQueue::~CudaQueue() {
  static_cast<void>(cudaSetDevice(device_.index()));
  static_cast<void>(cudaStreamSynchronize(stream_of(stream_)));
  if (owned_) static_cast<void>(cudaStreamDestroy(stream_of(stream_)));
  static_cast<void>(cudaFree(workspace_));
}

void CudaQueue::record(CudaMark& mark) {
  check(cudaEventRecord(event_of(mark.native()), stream_of(stream_)), "cudaEventRecord", device_);
}

void CudaQueue::wait(const CudaMark& mark) {
  check(cudaStreamWaitEvent(stream_of(stream_), event_of(mark.native()), 0), "cudaStreamWaitEvent", device_);
}

void CudaQueue::copy(void* to, const void* from, Bytes size) {
  if (size == Bytes(0)) return;
  check(cudaMemcpyAsync(to, from, size.count(), cudaMemcpyDefault, stream_of(stream_)), "cudaMemcpyAsync", device_);
}

void CudaQueue::fill(void* data, int value, Bytes size) {
  if (size == Bytes(0)) return;
  check(cudaMemsetAsync(data, value, size.count(), stream_of(stream_)), "cudaMemsetAsync", device_);
}

void CudaQueue::synchronize() {
  make_current(device_);
  check(cudaStreamSynchronize(stream_of(stream_)), "cudaStreamSynchronize", device_);
  while (!checks_.empty()) {
    const std::shared_ptr<QueueCheck> check = std::move(checks_.back());
    checks_.pop_back();
    check->settle();
  }
}

void CudaQueue::add_check(const std::shared_ptr<QueueCheck>& check) {
  if (std::find(checks_.begin(), checks_.end(), check) != checks_.end()) return;
  checks_.push_back(check);
}

}  // namespace tessera::device
