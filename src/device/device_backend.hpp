// A kind of device brings these: its events, streams and time stamps, and names for a profiler. The CPU's stand in
// cpu_stream.hpp; a build without CUDA links device_cuda_stub.cpp in place of the rest.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <string>

#include "tessera/device/device.hpp"
#include "tessera/device/event.hpp"
#include "tessera/device/stream.hpp"

namespace tessera {

// Streams of its kind of device record and await it.
class Event::Implementation {
 public:
  virtual ~Implementation() = default;
  virtual Device device() const = 0;
  virtual const std::string& name() const = 0;
  virtual bool recorded() const = 0;
  virtual bool complete() const = 0;
  // Blocks the calling thread until complete(); false when the deadline passed first.
  virtual bool wait_on_host(std::chrono::steady_clock::time_point deadline) const = 0;
  // The failure of the stream that recorded it, if that came before; else null. The event is complete.
  virtual std::exception_ptr failure() const = 0;
};

// Stream has checked that events belong to the device and were recorded.
class Stream::Implementation {
 public:
  virtual ~Implementation() = default;
  virtual Device device() const = 0;
  virtual const std::string& name() const = 0;
  virtual StreamMode mode() const = 0;
  virtual bool meets_peers() const = 0;
  virtual void submit(Task task) = 0;
  virtual void record(Event::Implementation& event) = 0;
  virtual void wait(Event::Implementation& event) = 0;
  virtual void wait_for_all() = 0;  // blocks the host; throws nothing
  virtual std::optional<std::chrono::nanoseconds> waited() const = 0;
  virtual std::exception_ptr failure() const = 0;
};

namespace device {

// How the streams of a device other than the CPU are stamped with times.
class DeviceStamps {
 public:
  virtual ~DeviceStamps() = default;
  virtual void take(Stream& stream, std::size_t index) = 0;  // enqueues
  // Nanoseconds of the host's steady clock; what was not taken is left alone. The streams have been synchronised.
  virtual void read(std::span<std::int64_t> values) const = 0;
};

std::unique_ptr<Event::Implementation> make_cpu_event(std::string name);
std::unique_ptr<Event::Implementation> make_cuda_event(Device device, std::string name);
std::unique_ptr<Stream::Implementation> make_cpu_stream(StreamOptions options);
std::unique_ptr<Stream::Implementation> make_cuda_stream(Device device, StreamOptions options);
std::unique_ptr<DeviceStamps> make_cuda_stamps(Device device, std::size_t count);

// ---- names on a profiler's time line (NVTX) ----

// Whether a profiler listens: Nsight sets NVTX_INJECTION64_PATH. Elsewhere ranges are not worth their tasks.
bool profiled(Device device);

// On a CUDA stream: what it issues between the two belongs to the range. `name` must stay until the range has ended.
// Enqueue.
void begin_range(Stream& stream, const char* name);
void end_range(Stream& stream);

}  // namespace device
}  // namespace tessera
