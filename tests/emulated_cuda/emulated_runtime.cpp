// Streams, events and memory of the emulated device, on the project's own CPU streams.
#include <sys/mman.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "../sanitizers/sanitizers.hpp"
#include "cuda_runtime.h"
#include "device/device_backend.hpp"
#include "fibers.hpp"
#include "tessera/device/event.hpp"
#include "tessera/device/stream.hpp"

#if TESSERA_ADDRESS_SANITIZER
#include <sanitizer/asan_interface.h>
#endif

struct EmulatedStream {
  int device = 0;
  tessera::Stream stream{tessera::Device::cpu(), {.name = "emulated"}};
  std::mutex mutex;  // a Stream is one host thread's; a cudaStream_t anybody's
};

struct EmulatedEvent {
  int device = 0;
  bool timed = false;
  tessera::Event event{tessera::Device::cpu(), "emulated"};
  std::mutex mutex;
  // A record that is under way outlives the event.
  std::shared_ptr<std::atomic<std::int64_t>> nanoseconds = std::make_shared<std::atomic<std::int64_t>>(0);
};

namespace {

constexpr std::size_t page = 4096;
constexpr std::size_t device_bytes = std::size_t{4} << 30;
constexpr std::size_t kernel_bytes = std::size_t{8} << 20;  // that come with a kernel: its module may have others

struct Allocation {
  std::size_t size;
  bool device;
};

// With TESSERA_EMULATED_PROTECTION set, nobody may touch the device's memory while no work of the device runs: a host
// access that is not hidden by such work ends the program, as on a machine with a GPU. It makes small work 20 times as
// slow.
class Memory {
 public:
  void* take(std::size_t size, bool device) {
    const std::size_t whole = (size + page - 1) / page * page;
    const std::lock_guard lock(mutex_);
    if (device && used_ + whole > device_bytes) return nullptr;
    void* data = ::mmap(nullptr, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) return nullptr;
    std::memset(data, 0xff, whole);  // what is not written yet is no zero on a GPU; here it is no number, either
#if TESSERA_ADDRESS_SANITIZER
    __asan_poison_memory_region(static_cast<std::byte*>(data) + size, whole - size);
#endif
    allocations_[data] = {whole, device};
    if (device) used_ += whole;
    if (device && protects_ && workers_ == 0) ::mprotect(data, whole, PROT_NONE);
    return data;
  }

  bool give_back(void* data) {
    const std::lock_guard lock(mutex_);
    const auto found = allocations_.find(data);
    if (found == allocations_.end()) return data == nullptr;
    if (found->second.device) used_ -= found->second.size;
#if TESSERA_ADDRESS_SANITIZER
    __asan_unpoison_memory_region(data, found->second.size);
#endif
    ::munmap(data, found->second.size);
    allocations_.erase(found);
    return true;
  }

  // Whether the runtime knows this memory: copies of other memory are not asynchronous.
  bool known(const void* data) {
    const std::lock_guard lock(mutex_);
    auto after = allocations_.upper_bound(const_cast<void*>(data));
    if (after == allocations_.begin()) return false;
    --after;
    return static_cast<const std::byte*>(data) < static_cast<const std::byte*>(after->first) + after->second.size;
  }

  void load(const void* kernel) {
    const std::lock_guard lock(mutex_);
    if (loaded_.insert(kernel).second) used_ += kernel_bytes;
  }

  std::size_t used() {
    const std::lock_guard lock(mutex_);
    return used_;
  }

  void begin_work() {
    if (!protects_) return;
    const std::lock_guard lock(mutex_);
    if (workers_++ == 0) protect(PROT_READ | PROT_WRITE);
  }
  void end_work() {
    if (!protects_) return;
    const std::lock_guard lock(mutex_);
    if (--workers_ == 0) protect(PROT_NONE);
  }

 private:
  void protect(int access) {
    for (const auto& [data, allocation] : allocations_) {
      if (allocation.device) ::mprotect(data, allocation.size, access);
    }
  }

  const bool protects_ = std::getenv("TESSERA_EMULATED_PROTECTION") != nullptr;
  std::mutex mutex_;
  std::map<void*, Allocation> allocations_;
  std::set<const void*> loaded_;
  std::size_t used_ = 0;
  int workers_ = 0;  // pieces of the device's work that run now
};

Memory& memory() {
  static Memory memory;
  return memory;
}

constexpr int most_devices = 64;
thread_local int current_device = 0;
thread_local cudaError_t last_error = cudaSuccess;
std::array<std::atomic<cudaError_t>, most_devices> faults = {};  // of each device's work

// Every call that concerns a device returns this. A fault of the device's work comes with whatever is called next, and
// stays. "Not ready" is left for cudaGetLastError() like any error.
cudaError_t answer(cudaError_t status, int device = current_device) {
  if (const cudaError_t fault = faults[static_cast<std::size_t>(device)]; fault != cudaSuccess) status = fault;
  if (status != cudaSuccess) last_error = status;
  return status;
}

std::atomic<int> strangers = 0;
std::atomic<std::size_t> launches = 0;
std::atomic<std::size_t> attributes = 0;
std::atomic<std::int64_t> copies_take = 0;    // microseconds longer
std::atomic<std::uint32_t> memory_takes = 0;  // up to so many microseconds longer

// Dynamic shared memory that blocks of a kernel may have.
class SharedMemory {
 public:
  void allow(const void* kernel, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    allowed_[{current_device, kernel}] = bytes;
  }
  bool allows(const void* kernel, std::size_t bytes) {
    constexpr std::size_t always = 48 * 1024;
    if (bytes <= always) return true;
    const std::lock_guard lock(mutex_);
    const auto found = allowed_.find({current_device, kernel});
    return found != allowed_.end() && bytes <= found->second;
  }

 private:
  std::mutex mutex_;
  std::map<std::pair<int, const void*>, std::size_t> allowed_;  // by device and kernel
};

SharedMemory& shared_memory() {
  static SharedMemory memory;
  return memory;
}

// Where a stream stands now. Waiting for it keeps nobody from the stream: others' work may be what it waits for.
tessera::Event mark_of(EmulatedStream* stream) {
  tessera::Event reached(tessera::Device::cpu(), "synchronized");
  const std::lock_guard lock(stream->mutex);
  stream->stream.record(reached);
  return reached;
}
void await(tessera::Event reached) {
  reached.implementation().wait_on_host(std::chrono::steady_clock::time_point::max());
}

// All streams of one device.
class Streams {
 public:
  void add(EmulatedStream* stream) {
    const std::lock_guard lock(mutex_);
    all_.insert(stream);
  }
  void remove(EmulatedStream* stream) {
    const std::lock_guard lock(mutex_);
    all_.erase(stream);
  }
  void synchronize() {
    std::vector<tessera::Event> reached;
    {
      const std::lock_guard lock(mutex_);
      for (EmulatedStream* stream : all_) reached.push_back(mark_of(stream));
    }
    for (tessera::Event& each : reached) await(std::move(each));
  }

 private:
  std::mutex mutex_;
  std::set<EmulatedStream*> all_;
};

Streams& streams_of(int device) {
  static std::mutex mutex;
  static std::map<int, Streams> streams;
  const std::lock_guard lock(mutex);
  return streams[device];
}

int device_count() {
  const char* const count = std::getenv("TESSERA_EMULATED_DEVICES");
  return count == nullptr ? 1 : std::atoi(count);
}

// After a fault nothing of the device runs any more.
template <typename Work>
void enqueue(cudaStream_t stream, Work work) {
  auto kept = std::make_shared<Work>(std::move(work));
  const std::lock_guard lock(stream->mutex);
  stream->stream.submit([kept, &fault = faults[static_cast<std::size_t>(stream->device)]] {
    if (fault != cudaSuccess) return;
    memory().begin_work();
    (*kept)();
    memory().end_work();
  });
}

std::int64_t now() { return std::chrono::steady_clock::now().time_since_epoch().count(); }

}  // namespace

int emulated::queries_from_other_devices() { return strangers; }
emulated::Calls emulated::calls() { return {launches, attributes}; }
void emulated::delay_copies(std::chrono::microseconds delay) { copies_take = delay.count(); }
void emulated::delay_memory(std::chrono::microseconds most) { memory_takes = static_cast<std::uint32_t>(most.count()); }
void emulated::enqueue_fault(cudaStream_t stream) {
  enqueue(stream, [&fault = faults[static_cast<std::size_t>(stream->device)]] { fault = cudaErrorIllegalAddress; });
}
void emulated::clear_faults() {
  for (auto& fault : faults) fault = cudaSuccess;
  last_error = cudaSuccess;
}

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess: return "cudaSuccess";
    case cudaErrorInvalidValue: return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation: return "cudaErrorMemoryAllocation";
    case cudaErrorInsufficientDriver: return "cudaErrorInsufficientDriver";
    case cudaErrorNoDevice: return "cudaErrorNoDevice";
    case cudaErrorInvalidDevice: return "cudaErrorInvalidDevice";
    case cudaErrorInvalidResourceHandle: return "cudaErrorInvalidResourceHandle";
    case cudaErrorNotReady: return "cudaErrorNotReady";
    case cudaErrorIllegalAddress: return "cudaErrorIllegalAddress";
    case cudaErrorPeerAccessAlreadyEnabled: return "cudaErrorPeerAccessAlreadyEnabled";
  }
  return "cudaErrorUnknown";
}
const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaErrorMemoryAllocation ? "out of memory" : "an error of the emulated device";
}
cudaError_t cudaGetLastError() {
  const cudaError_t last = std::exchange(last_error, cudaSuccess);
  const cudaError_t fault = faults[static_cast<std::size_t>(current_device)];
  return fault == cudaSuccess ? last : fault;
}

cudaError_t cudaGetDeviceCount(int* count) {
  if (device_count() == 0) return answer(cudaErrorNoDevice);
  *count = device_count();
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = current_device;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= device_count()) return answer(cudaErrorInvalidDevice);
  current_device = device;
  return answer(cudaSuccess);
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  *properties = {.name = "emulated", .major = 9, .minor = 0, .multiProcessorCount = 4, .totalGlobalMem = device_bytes};
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  *total = device_bytes;
  *free = device_bytes - memory().used();
  return answer(cudaSuccess);
}
cudaError_t cudaDeviceSynchronize() {
  streams_of(current_device).synchronize();
  return answer(cudaSuccess);
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return answer(cudaSuccess);
}
cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) {
  *can = 1;
  return cudaSuccess;
}
cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned) {
  static std::mutex mutex;
  static std::set<std::pair<int, int>> enabled;
  const std::lock_guard lock(mutex);
  return answer(enabled.insert({current_device, peer}).second ? cudaSuccess : cudaErrorPeerAccessAlreadyEnabled);
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int) {
  *stream = new EmulatedStream;
  (*stream)->device = current_device;
  streams_of(current_device).add(*stream);
  return answer(cudaSuccess);
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  const int device = stream->device;
  streams_of(device).remove(stream);
  delete stream;
  return answer(cudaSuccess, device);
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  await(mark_of(stream));
  return answer(cudaSuccess, stream->device);
}
// An event that was never recorded orders nothing. Events and streams of different devices may wait for each other ...
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  const std::scoped_lock lock(stream->mutex, event->mutex);
  if (event->event.recorded()) stream->stream.wait(event->event);
  return answer(cudaSuccess, stream->device);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  *event = new EmulatedEvent;
  (*event)->device = current_device;
  (*event)->timed = (flags & cudaEventDisableTiming) == 0;
  return answer(cudaSuccess);
}
cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, 0); }
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  const int device = event->device;
  delete event;
  return answer(cudaSuccess, device);
}
// ... but an event is recorded on its own device alone.
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  if (event->device != stream->device) return answer(cudaErrorInvalidResourceHandle);
  const std::scoped_lock lock(stream->mutex, event->mutex);
  stream->stream.submit([time = event->nanoseconds] { *time = now(); });
  stream->stream.record(event->event);
  return answer(cudaSuccess, stream->device);
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  if (event->device != current_device) ++strangers;
  const std::lock_guard lock(event->mutex);
  return answer(!event->event.recorded() || event->event.complete() ? cudaSuccess : cudaErrorNotReady, event->device);
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t from, cudaEvent_t to) {
  if (from->device != to->device) return answer(cudaErrorInvalidResourceHandle);
  for (EmulatedEvent* const event : {from, to}) {
    const std::lock_guard lock(event->mutex);
    if (!event->timed || !event->event.recorded()) return answer(cudaErrorInvalidResourceHandle);
    if (!event->event.complete()) return answer(cudaErrorNotReady);
  }
  *milliseconds = static_cast<float>(*to->nanoseconds - *from->nanoseconds) * 1e-6f;
  return answer(cudaSuccess, from->device);
}

namespace {
void delay_as_asked() {
  static std::atomic<std::uint32_t> calls = 0;
  if (memory_takes == 0) return;
  std::minstd_rand random(++calls);
  std::this_thread::sleep_for(std::chrono::microseconds(random() % memory_takes));
}
}  // namespace

// A device may wait here for all that runs on it, and for what is enqueued; this one does.
cudaError_t cudaMalloc(void** data, std::size_t size) {
  delay_as_asked();
  streams_of(current_device).synchronize();
  *data = size == 0 ? nullptr : memory().take(size, true);
  return answer(*data == nullptr && size > 0 ? cudaErrorMemoryAllocation : cudaSuccess);
}
// Memory goes only after all work that was enqueued, as on a device.
cudaError_t cudaFree(void* data) {
  delay_as_asked();
  streams_of(current_device).synchronize();
  return answer(memory().give_back(data) ? cudaSuccess : cudaErrorInvalidValue);
}
cudaError_t cudaHostAlloc(void** data, std::size_t size, unsigned) {
  *data = size == 0 ? nullptr : memory().take(size, false);
  return answer(*data == nullptr && size > 0 ? cudaErrorMemoryAllocation : cudaSuccess);
}
cudaError_t cudaFreeHost(void* data) { return cudaFree(data); }

cudaError_t cudaMemset(void* data, int value, std::size_t size) {
  memory().begin_work();
  std::memset(data, value, size);
  memory().end_work();
  return answer(cudaSuccess);
}
cudaError_t cudaMemsetAsync(void* data, int value, std::size_t size, cudaStream_t stream) {
  enqueue(stream, [=] { std::memset(data, value, size); });
  return answer(cudaSuccess, stream->device);
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t size, cudaMemcpyKind, cudaStream_t stream) {
  enqueue(stream, [=] {
    if (copies_take > 0) std::this_thread::sleep_for(std::chrono::microseconds(copies_take));
    std::memmove(to, from, size);
  });
  return memory().known(to) && memory().known(from) ? answer(cudaSuccess, stream->device)
                                                    : cudaStreamSynchronize(stream);
}

cudaError_t emulated::launch(const cudaLaunchConfig_t& configuration, std::function<void()> thread) {
  const dim3 block = configuration.blockDim;
  const dim3 grid = configuration.gridDim;
  const std::uint64_t threads = std::uint64_t{block.x} * block.y * block.z;
  if (threads == 0 || threads > 1024 || grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.y > 65535 || grid.z > 65535 ||
      configuration.dynamicSmemBytes > 227 * 1024) {
    return answer(cudaErrorInvalidValue);
  }
  enqueue(configuration.stream, [configuration, thread = std::move(thread)] { run_grid(configuration, thread); });
  return answer(cudaSuccess, configuration.stream->device);
}

cudaError_t emulated::launch_kernel(const void* kernel, const cudaLaunchConfig_t& configuration,
                                    std::function<void()> thread) {
  if (configuration.stream->device != current_device) return answer(cudaErrorInvalidResourceHandle);
  if (!shared_memory().allows(kernel, configuration.dynamicSmemBytes)) return answer(cudaErrorInvalidValue);
  memory().load(kernel);
  ++launches;
  return launch(configuration, std::move(thread));
}

cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute, int value) {
  shared_memory().allow(kernel, static_cast<std::size_t>(value));
  ++attributes;
  return answer(cudaSuccess);
}
