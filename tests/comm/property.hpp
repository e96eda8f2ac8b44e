// Tools of the conformance suite: violated properties, expected errors, streams, and values whose sums depend on order.
#pragma once

#include <fmt/format.h>

#include <bit>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "device/cuda/cuda_queue.hpp"
#include "tessera/base/dtype.hpp"
#include "tessera/base/half.hpp"
#include "tessera/comm/world.hpp"
#include "tessera/device/arena.hpp"
#include "tessera/device/stream.hpp"

namespace tessera::conformance {

// The text is formatted only when it is needed: some properties are required of millions of elements.
template <typename... Values>
void require(bool holds, fmt::format_string<Values...> property, Values&&... values) {
  if (!holds) throw std::runtime_error("violated: " + fmt::format(property, std::forward<Values>(values)...));
}

inline void require_contains(const std::string& text, std::string_view part) {
  require(text.find(part) != std::string::npos, "\"{}\" contains \"{}\"", text, part);
}

// The text of the Expected that `function` throws; anything else is a violation.
template <typename Expected, typename Function>
std::string text_of_expected(Function&& function) {
  try {
    function();
  } catch (const Expected& error) {
    return error.what();
  } catch (const std::exception& error) {
    throw std::runtime_error(fmt::format("violated: the wrong kind of error: {}", error.what()));
  }
  throw std::runtime_error("violated: an error was expected");
}

// Where the backend under test moves data; a rank's thread may have a device of its own.
inline Device& device_under_test() {
  static Device device = Device::cpu();
  return device;
}
inline std::optional<Device>& device_of_this_thread() {
  thread_local std::optional<Device> device;
  return device;
}
inline Device device_in_use() { return device_of_this_thread().value_or(device_under_test()); }

// Memory that both the host and that device can use: pinned, on a CUDA device. The arena's owner stands before the
// data.
template <typename T>
struct SharedMemory {
  using value_type = T;
  static constexpr std::size_t header = 64;

  SharedMemory() = default;
  template <typename U>
  explicit SharedMemory(const SharedMemory<U>&) {}

  T* allocate(std::size_t count) {
    auto owner = std::make_unique<Arena>(Arena::on_host_of(device_in_use(), Bytes(header + count * sizeof(T))));
    std::byte* const data = owner->data();
    *reinterpret_cast<Arena**>(data) = owner.release();
    return reinterpret_cast<T*>(data + header);
  }
  void deallocate(T* data, std::size_t) {
    delete *reinterpret_cast<Arena**>(reinterpret_cast<std::byte*>(data) - header);
  }
  friend bool operator==(const SharedMemory&, const SharedMemory&) { return true; }
};
template <typename T>
using Shared = std::vector<T, SharedMemory<T>>;

inline Stream queued_stream(std::string name, std::optional<std::uint64_t> delay_seed = std::nullopt) {
  return Stream(device_in_use(), {.name = std::move(name), .delay_seed = delay_seed});
}

// Work of the host, in the stream's order. The tasks of a CUDA stream issue; this one waits for what was issued first.
template <typename Work>
void on_host(Stream& stream, Work work) {
  if (stream.device().kind() == DeviceKind::cpu) return stream.submit(work);
  stream.submit([&queue = device::cuda_queue(stream), work] {
    queue.synchronize();
    work();
  });
}

inline double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Far below the worlds' 60 s and far above what an error needs to travel.
constexpr double at_once_seconds = 20;

inline int last_rank(const World& world) { return world.size() - 1; }
inline bool is_last(const World& world) { return world.rank() == last_rank(world); }

inline void wait_for_abort(const World& world) {
  const auto start = std::chrono::steady_clock::now();
  while (!world.aborted()) {
    require(seconds_since(start) < at_once_seconds, "the world is aborted");
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

inline std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 31)) * 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 29)) * 0xbf58476d1ce4e5b9u;
  return x ^ (x >> 32);
}

// Both signs and magnitudes from 2^-8 to 2^8, so that fp32 sums in another order have other bits.
inline float test_value(int rank, std::size_t index, std::uint64_t seed = 0) {
  const std::uint64_t bits = mix(mix(seed * 1000 + static_cast<std::uint64_t>(rank)) + index);
  const float unit = static_cast<float>(bits & 0xffffff) / 16777216.0f - 0.5f;
  return std::ldexp(unit, static_cast<int>((bits >> 24) % 17) - 8);
}

inline std::byte test_byte(int rank, std::size_t index, std::uint64_t seed = 0) {
  return static_cast<std::byte>(mix(mix(seed * 1000 + static_cast<std::uint64_t>(rank)) + index) & 0xff);
}

// The times of every rank, in rank order.
inline std::vector<std::int64_t> gather_times(World& world, std::span<const std::int64_t> mine) {
  const std::vector<std::byte> bytes = world.gather(std::as_bytes(mine), "times");
  std::vector<std::int64_t> all(bytes.size() / sizeof(std::int64_t));
  std::memcpy(all.data(), bytes.data(), bytes.size());
  return all;
}

// Elements of any wire type, in bytes.
template <typename Element>
void store(Shared<std::byte>& bytes, std::size_t index, float value) {
  const Element element = static_cast<Element>(value);
  std::memcpy(bytes.data() + index * sizeof(Element), &element, sizeof(Element));
}

inline bool same_bits(float a, float b) { return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b); }

}  // namespace tessera::conformance
