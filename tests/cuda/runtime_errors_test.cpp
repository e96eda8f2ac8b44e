// A GPU's runtime refuses what is mixed up between devices, and its errors come late and stay. The emulated one is as
// strict, and the library says what is wrong.
#include <cuda_runtime.h>
#include <doctest/doctest.h>

#include <chrono>
#include <vector>

#include "device_data.hpp"
#include "tessera/base/error.hpp"

using namespace tessera;
using namespace tessera::test;

namespace runtime_errors_test {

constexpr std::size_t count = 1000;

// Errors that a test has provoked are nobody else's.
struct Forgiven {
  ~Forgiven() { emulated::clear_faults(); }
};

cudaEvent_t event_of(int device, unsigned flags = 0) {
  cudaEvent_t event = nullptr;
  REQUIRE(cudaSetDevice(device) == cudaSuccess);
  REQUIRE(cudaEventCreateWithFlags(&event, flags) == cudaSuccess);
  return event;
}

cudaStream_t native(Stream& stream) { return static_cast<cudaStream_t>(native_stream(stream)); }

void nothing() {}

TEST_CASE("emulated cuda: events and launches belong to one device") {
  const Forgiven at_the_end;
  Stream stream = cuda_stream();
  cudaEvent_t other = event_of(1);
  cudaEvent_t own = event_of(0);
  CHECK(cudaEventRecord(other, native(stream)) == cudaErrorInvalidResourceHandle);
  CHECK(cudaEventRecord(own, native(stream)) == cudaSuccess);
  const cudaLaunchConfig_t configuration{.gridDim = {1}, .blockDim = {1}, .stream = native(stream)};
  CHECK(cudaLaunchKernelEx(&configuration, nothing) == cudaSuccess);
  REQUIRE(cudaSetDevice(1) == cudaSuccess);
  CHECK(cudaLaunchKernelEx(&configuration, nothing) == cudaErrorInvalidResourceHandle);
  REQUIRE(cudaSetDevice(0) == cudaSuccess);
  stream.synchronize();
  cudaEventDestroy(other);
  cudaEventDestroy(own);
}

TEST_CASE("emulated cuda: times of events are told when both are over, and were asked for") {
  const Forgiven at_the_end;
  Stream stream = cuda_stream();
  cudaEvent_t begin = event_of(0), end = event_of(0), untimed = event_of(0, cudaEventDisableTiming);
  float milliseconds = -1.0f;
  CHECK(cudaEventElapsedTime(&milliseconds, begin, end) == cudaErrorInvalidResourceHandle);  // never recorded
  DeviceBuffer<float> from(count), to(count);
  emulated::delay_copies(std::chrono::milliseconds(20));
  cudaEventRecord(begin, native(stream));
  kernels::copy(stream, to.data(), from.data(), Bytes(count * sizeof(float)));
  cudaEventRecord(end, native(stream));
  cudaEventRecord(untimed, native(stream));
  CHECK(cudaEventElapsedTime(&milliseconds, begin, end) == cudaErrorNotReady);
  stream.synchronize();
  emulated::delay_copies({});
  CHECK(cudaEventElapsedTime(&milliseconds, begin, end) == cudaSuccess);
  CHECK(milliseconds >= 19.0f);
  CHECK(cudaEventElapsedTime(&milliseconds, begin, untimed) == cudaErrorInvalidResourceHandle);
  for (cudaEvent_t each : {begin, end, untimed}) cudaEventDestroy(each);
}

// PyTorch asks for the last error after each of its launches, and would take this one for its own.
TEST_CASE("emulated cuda: who asks for an event that is not over leaves no error behind") {
  Stream stream = cuda_stream();
  Event copied(Device::cuda(0), "copied");
  DeviceBuffer<float> from(count), to(count);
  emulated::delay_copies(std::chrono::milliseconds(20));
  kernels::copy(stream, to.data(), from.data(), Bytes(count * sizeof(float)));
  stream.record(copied);
  CHECK_FALSE(copied.complete());
  CHECK(cudaGetLastError() == cudaSuccess);
  stream.synchronize();
  emulated::delay_copies({});
}

TEST_CASE("emulated cuda: a fault of a kernel comes with the next call, stays, and is told") {
  const Forgiven at_the_end;
  DeviceBuffer<float> data(std::vector<float>(count, 6.0f));
  const auto fault = doctest::Contains("cudaErrorIllegalAddress");
  {
    Stream stream = cuda_stream(StreamMode::queued);
    Event after(Device::cuda(0), "after");
    kernels::divide(stream, data.data(), 2.0f, count);
    stream.synchronize();
    emulated::enqueue_fault(native(stream));
    kernels::divide(stream, data.data(), 3.0f, count);
    CHECK_THROWS_WITH_AS(stream.synchronize(), fault, Error);
    CHECK_THROWS_WITH_AS(Arena(Device::cuda(0), Bytes(64)), fault, Error);
    CHECK_THROWS_WITH_AS(cuda_stream(), fault, Error);
    CHECK(cudaGetLastError() == cudaErrorIllegalAddress);
  }  // what is destroyed now throws nothing
  emulated::clear_faults();
  CHECK(data.values() == std::vector<float>(count, 3.0f));
}

}  // namespace runtime_errors_test
