// The tests on CUDA devices share these: streams, and buffers of the device with guards around them.
#pragma once

#include <cstring>
#include <vector>

#include "../extent.hpp"
#include "../kernels/cases.hpp"
#include "tessera/device/arena.hpp"
#include "tessera/device/cuda.hpp"
#include "tessera/device/stream.hpp"
#include "tessera/kernels/elementwise.hpp"

namespace tessera::test {

inline Stream cuda_stream(StreamMode mode = StreamMode::immediate) {
  return Stream(Device::cuda(0), {.name = "cuda test", .mode = mode});
}

// A test asks for its device when it runs: without a GPU there is none.
inline Stream stream_on(DeviceKind kind) { return kind == DeviceKind::cpu ? host_stream() : cuda_stream(); }

// `count` elements of a device that begin `shift` elements after a page, with guards of 64 bytes or more on both sides.
template <typename T>
class DeviceBuffer {
 public:
  DeviceBuffer(DeviceKind kind, std::size_t count, std::size_t shift = 0)
      : count_(count),
        first_(64 + shift),
        arena_(kind == DeviceKind::cpu ? Device::cpu() : Device::cuda(0), Bytes((count + 128 + shift) * sizeof(T))),
        stream_(stream_on(kind)) {
    const std::vector<T> guards(count + 128 + shift, guard());
    transfer(arena_.data(), guards.data(), guards.size());
  }
  DeviceBuffer(DeviceKind kind, const std::vector<T>& values, std::size_t shift = 0)
      : DeviceBuffer(kind, values.size(), shift) {
    transfer(data(), values.data(), values.size());
  }
  explicit DeviceBuffer(std::size_t count, std::size_t shift = 0) : DeviceBuffer(DeviceKind::cuda, count, shift) {}
  DeviceBuffer(const std::vector<T>& values, std::size_t shift = 0) : DeviceBuffer(DeviceKind::cuda, values, shift) {}

  T* data() { return reinterpret_cast<T*>(arena_.data()) + first_; }
  std::vector<T> values() {
    std::vector<T> result(count_);
    transfer(result.data(), data(), count_);
    return result;
  }
  bool guards_intact() {
    std::vector<T> all(count_ + 64 + first_);
    transfer(all.data(), arena_.data(), all.size());
    for (std::size_t i = 0; i < all.size(); ++i) {
      const bool outside = i < first_ || i >= first_ + count_;
      const T expected = guard();
      if (outside && std::memcmp(&all[i], &expected, sizeof(T)) != 0) return false;
    }
    return true;
  }

 private:
  static T guard() { return T(-77.0f); }
  void transfer(void* to, const void* from, std::size_t count) {
    kernels::copy(stream_, to, from, Bytes(count * sizeof(T)));
    stream_.synchronize();
  }

  std::size_t count_;
  std::size_t first_;
  Arena arena_;
  Stream stream_;  // one for all transfers: a stream of the emulated device is a thread
};

// body(count, shift): sizes around every boundary, starts of every alignment.
template <typename Body>
void with_each_shape(Body body) {
  for (std::size_t count : {0u, 1u, 2u, 3u, 4u, 5u, 63u, 127u, 255u, 256u, 257u, 1023u, 1024u, 1025u, 4099u}) {
    for (std::size_t shift : {0u, 1u, 2u}) {
      CAPTURE(count);
      CAPTURE(shift);
      body(count, shift);
    }
  }
}

}  // namespace tessera::test
