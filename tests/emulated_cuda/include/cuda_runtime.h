// The part of the CUDA runtime that Tessera uses, on the CPU: device code compiles as C++ and runs in fibers, one per
// thread of a block, so that indices, barriers, shuffles, streams and events are proved where there is no GPU. It says
// nothing about speed. With TESSERA_EMULATED_PROTECTION set, host code that touches the device's memory ends the program.
#pragma once

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
// Blocks of a kernel run one after the other on one thread of the host: what is static there is a block's own.
#define __shared__ static thread_local

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
  std::byte* dynamic_shared;
  unsigned rank;           // in the block
  std::uint64_t* exchange;  // one slot per thread of the block
  std::vector<Copy> copies = {};
};

Thread& self();
void block_barrier();
void warp_barrier();

// The value of the thread `lane` of the same warp; the own one where there is none.
template <typename T>
T value_of_lane(T value, unsigned lane) {
  static_assert(sizeof(T) <= sizeof(std::uint64_t) && std::is_trivially_copyable_v<T>);
  const Thread& me = self();
  const unsigned first = me.rank / 32 * 32;
  const unsigned threads = me.block_dim.x * me.block_dim.y * me.block_dim.z;
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  me.exchange[me.rank] = bits;
  warp_barrier();
  const unsigned from = lane < 32 && first + lane < threads ? first + lane : me.rank;
  std::uint64_t got = me.exchange[from];
  warp_barrier();
  T result;
  std::memcpy(&result, &got, sizeof(T));
  return result;
}

}  // namespace emulated

// The running thread's, set whenever a fiber goes on.
inline thread_local uint3 threadIdx;
inline thread_local uint3 blockIdx;
inline thread_local dim3 blockDim;
inline thread_local dim3 gridDim;
inline constexpr int warpSize = 32;

inline void __syncthreads() { ::emulated::block_barrier(); }
inline void __syncwarp(unsigned = 0xffffffffu) { ::emulated::warp_barrier(); }
inline void __threadfence() {}
template <typename T>
T __shfl_sync(unsigned, T value, int lane) {
  return ::emulated::value_of_lane(value, static_cast<unsigned>(lane));
}
template <typename T>
T __shfl_xor_sync(unsigned, T value, int mask, int = 32) {
  return ::emulated::value_of_lane(value, (::emulated::self().rank % 32) ^ static_cast<unsigned>(mask));
}
template <typename T>
T __shfl_down_sync(unsigned, T value, unsigned delta, int = 32) {
  return ::emulated::value_of_lane(value, ::emulated::self().rank % 32 + delta);
}
// The lanes of the warp that have the same value. All of them take part.
inline unsigned __match_any_sync(unsigned, unsigned value) {
  const ::emulated::Thread& me = ::emulated::self();
  const std::uint64_t* const of_warp = me.exchange + me.rank / 32 * 32;
  me.exchange[me.rank] = value;
  ::emulated::warp_barrier();
  unsigned equals = 0;
  for (unsigned lane = 0; lane < 32; ++lane) equals |= (of_warp[lane] == value ? 1u : 0u) << lane;
  ::emulated::warp_barrier();
  return equals;
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
    while (!__atomic_compare_exchange(to, &old, [&] { static thread_local T sum; sum = old + value; return &sum; }(), false,
                                      __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
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
  cudaErrorNotReady = 600,
  cudaErrorPeerAccessAlreadyEnabled = 704,
  cudaErrorLaunchFailure = 719,
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

// This launches no kernel: it is for what stands in for a library.
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
