// The part of the CUDA runtime that Tessera uses, on the CPU: device code compiles as C++ and runs in fibers, one per
// thread of a block, so that indices, barriers, shuffles, streams and events are proved where there is no GPU. It says
// nothing about speed. With TESSERA_EMULATED_PROTECTION set, host code that touches the device's memory ends the
// program.
#pragma once

#include "../../sanitizers/sanitizers.hpp"

#include <bit>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <tuple>
#include <type_traits>
#include <vector>

#define __global__ inline
#define __device__
#define __host__
#define __forceinline__ inline
#define __restrict__ __restrict
#define __launch_bounds__(...)
#define __grid_constant__

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};
struct uint3 {
  unsigned x, y, z;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

// ---- what a running thread sees ----

namespace emulated {

// Into shared memory, begun and not yet waited for.
struct Copy {
  void* to;
  const void* from;  // null: zeros
  std::size_t bytes;
};

struct Thread {
  uint3 thread;
  uint3 block;
  dim3 block_dim;
  dim3 grid_dim;
  unsigned rank;  // in the block
  std::vector<Copy> copies = {};

  unsigned lane() const { return rank % 32; }
};

Thread& self();

// Ends the program with a line that names the running thread.
[[noreturn]] void fail(const char* text);

// The emulation's own doings, which are no kernel's: as long as this lives, ThreadSanitizer looks away, from accesses and
// from what orders them.
class Unwatched {
 public:
#if TESSERA_THREAD_SANITIZER
  Unwatched();
  ~Unwatched();
#else
  Unwatched() {}
  ~Unwatched() {}
#endif
  Unwatched(const Unwatched&) = delete;
  Unwatched& operator=(const Unwatched&) = delete;
};

// What the lanes of a warp show when they meet; null for those that have not come.
using Shown = void* const (&)[32];

// Waits for all lanes of the mask that have not ended. The last one to come does the work. This orders no access to
// memory: shuffles do not, either.
void meet_warp(unsigned mask, void* shown, void (*work)(Shown));

// A part of the block's shared memory, by itself, filled with numbers that are none when the first thread asks for it.
// `name` is that of a static array; of dynamic memory it is null, and the place must lie in what the launch gave.
std::byte* shared_part(const void* name, std::size_t offset, std::size_t bytes);

// The place of each declaration has a type of its own.
template <typename Array, typename Place>
Array& static_part(Place) {
  static const char name = 0;
  return *reinterpret_cast<Array*>(shared_part(&name, 0, sizeof(Array)));
}

// The value of the same warp's thread `lane`. There must be one: those that are not in the mask, or have ended, give
// bits that are no number.
template <typename T>
T value_of_lane(unsigned mask, T value, unsigned lane) {
  static_assert(sizeof(T) <= sizeof(std::uint64_t) && std::is_trivially_copyable_v<T>);
  struct Lane {
    std::uint64_t shown;
    std::uint64_t got;
    unsigned wanted;
  };
  const Unwatched internals;
  Lane own{.shown = 0, .got = ~std::uint64_t{0}, .wanted = lane};
  std::memcpy(&own.shown, &value, sizeof(T));
  meet_warp(mask, &own, [](Shown lanes) {
    for (void* const each : lanes) {
      if (each == nullptr) continue;
      Lane& to = *static_cast<Lane*>(each);
      if (const void* const from = lanes[to.wanted]; from != nullptr) to.got = static_cast<const Lane*>(from)->shown;
    }
  });
  T result;
  std::memcpy(&result, &own.got, sizeof(T));
  return result;
}

inline unsigned checked_width(int width) {
  if (width < 1 || width > 32 || (width & (width - 1)) != 0) fail("a shuffle's width is no power of two up to 32");
  return static_cast<unsigned>(width);
}

void block_barrier();
void warp_barrier(unsigned mask);

}  // namespace emulated

// The running thread's, set whenever a fiber goes on.
inline thread_local uint3 threadIdx;
inline thread_local uint3 blockIdx;
inline thread_local dim3 blockDim;
inline thread_local dim3 gridDim;
inline constexpr int warpSize = 32;

inline void __syncthreads() { ::emulated::block_barrier(); }
inline void __syncwarp(unsigned mask = 0xffffffffu) { ::emulated::warp_barrier(mask); }
inline void __threadfence() {}
// Lanes in groups of `width`, as the programming guide has them: beyond its group a lane gets its own value.
template <typename T>
T __shfl_sync(unsigned mask, T value, int lane, int width = 32) {
  const unsigned group = ::emulated::checked_width(width);
  const unsigned own = ::emulated::self().lane();
  return ::emulated::value_of_lane(mask, value, own / group * group + static_cast<unsigned>(lane) % group);
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32) {
  const unsigned group = ::emulated::checked_width(width);
  const unsigned own = ::emulated::self().lane();
  const unsigned other = own ^ static_cast<unsigned>(lanes);
  return ::emulated::value_of_lane(mask, value, other < own / group * group + group ? other : own);
}
template <typename T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  const unsigned group = ::emulated::checked_width(width);
  const unsigned own = ::emulated::self().lane();
  return ::emulated::value_of_lane(mask, value, own % group + delta < group ? own + delta : own);
}
// The lanes of the mask that have the same value.
inline unsigned __match_any_sync(unsigned mask, unsigned value) {
  struct Lane {
    unsigned value;
    unsigned equals;
  };
  const ::emulated::Unwatched internals;
  Lane own{value, 0};
  ::emulated::meet_warp(mask, &own, [](::emulated::Shown lanes) {
    for (unsigned a = 0; a < 32; ++a) {
      for (unsigned b = 0; b < 32; ++b) {
        if (lanes[a] == nullptr || lanes[b] == nullptr) continue;
        Lane& to = *static_cast<Lane*>(lanes[a]);
        if (to.value == static_cast<const Lane*>(lanes[b])->value) to.equals |= 1u << b;
      }
    }
  });
  return own.equals;
}
inline int __popc(unsigned bits) { return std::popcount(bits); }
template <typename T>
T __ldg(const T* from) {
  return *from;
}
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __expf(float x) { return std::exp(x); }
inline float __fdividef(float x, float y) { return x / y; }
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }

// Kernels of one stream run one after the other, those of different streams at the same time.
template <typename T>
T atomicAdd(T* to, T value) {
  if constexpr (std::is_floating_point_v<T>) {
    T old = *to;
    while (!__atomic_compare_exchange(
        to, &old,
        [&] {
          static thread_local T sum;
          sum = old + value;
          return &sum;
        }(),
        false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
    return old;
  } else {
    return __atomic_fetch_add(to, value, __ATOMIC_RELAXED);
  }
}

// ---- the runtime ----

enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInsufficientDriver = 35,
  cudaErrorNoDevice = 100,
  cudaErrorInvalidDevice = 101,
  cudaErrorInvalidResourceHandle = 400,
  cudaErrorNotReady = 600,
  cudaErrorIllegalAddress = 700,
  cudaErrorPeerAccessAlreadyEnabled = 704,
};
enum cudaMemcpyKind { cudaMemcpyDefault = 4 };
inline constexpr unsigned cudaEventDisableTiming = 2;
inline constexpr unsigned cudaStreamNonBlocking = 1;
inline constexpr unsigned cudaHostAllocPortable = 1;

struct EmulatedStream;
struct EmulatedEvent;
using cudaStream_t = EmulatedStream*;
using cudaEvent_t = EmulatedEvent*;

struct cudaDeviceProp {
  char name[256];
  int major;
  int minor;
  int multiProcessorCount;
  std::size_t totalGlobalMem;
};

const char* cudaGetErrorName(cudaError_t);
const char* cudaGetErrorString(cudaError_t);
cudaError_t cudaGetLastError();
cudaError_t cudaGetDeviceCount(int* count);
cudaError_t cudaGetDevice(int* device);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device);
cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total);
cudaError_t cudaDeviceSynchronize();
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest);
cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer);
cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags);
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags);
cudaError_t cudaEventCreate(cudaEvent_t* event);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t from, cudaEvent_t to);
cudaError_t cudaMalloc(void** data, std::size_t size);
cudaError_t cudaFree(void* data);
cudaError_t cudaHostAlloc(void** data, std::size_t size, unsigned flags);
cudaError_t cudaFreeHost(void* data);
cudaError_t cudaMemset(void* data, int value, std::size_t size);
cudaError_t cudaMemsetAsync(void* data, int value, std::size_t size, cudaStream_t stream);
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t size, cudaMemcpyKind kind, cudaStream_t stream);

enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 };
cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute attribute, int value);

// ---- launching ----

struct cudaLaunchConfig_t {
  dim3 gridDim;
  dim3 blockDim;
  std::size_t dynamicSmemBytes = 0;
  cudaStream_t stream = nullptr;
  void* attrs = nullptr;
  unsigned numAttrs = 0;
};

namespace emulated {

// This launches no kernel: it is for what stands in for a library, whatever the current device is.
cudaError_t launch(const cudaLaunchConfig_t& configuration, std::function<void()> thread);
// A kernel's code comes to the device with its first launch, and takes memory there. Blocks get more than 48 KiB of
// dynamic shared memory only where cudaFuncSetAttribute() has allowed it on this device.
cudaError_t launch_kernel(const void* kernel, const cudaLaunchConfig_t& configuration, std::function<void()> thread);

// So far, of the whole process.
struct Calls {
  std::size_t launches;    // of kernels
  std::size_t attributes;  // of kernels that were set
};
Calls calls();

// From now on each copy takes so much longer.
void delay_copies(std::chrono::microseconds delay);

// From now on, whoever takes memory of the device or gives it back does so later, by anything up to `most`.
void delay_memory(std::chrono::microseconds most);

// The stream's next work faults: from then on nothing runs on its device, and each call that concerns it says so. Until
// they are cleared; no process can do that on a GPU.
void enqueue_fault(cudaStream_t stream);
void clear_faults();

// How often an event was queried by a thread whose current device was another than the event's: a GPU's runtime would
// have opened a context there.
int queries_from_other_devices();

}  // namespace emulated

template <typename... Parameters, typename... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* configuration, void (*kernel)(Parameters...),
                               Arguments&&... arguments) {
  std::tuple<std::remove_cvref_t<Parameters>...> values(std::forward<Arguments>(arguments)...);
  return emulated::launch_kernel(reinterpret_cast<const void*>(kernel), *configuration,
                                 [kernel, values] { std::apply(kernel, values); });
}
