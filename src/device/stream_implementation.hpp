// What a stream is on one kind of device. Stream checks that events belong to that device and were recorded.
#pragma once

#include <memory>
#include <string>

#include "tessera/device/stream.hpp"

namespace tessera {

class Stream::Implementation {
 public:
  virtual ~Implementation() = default;
  virtual Device device() const = 0;
  virtual const std::string& name() const = 0;
  virtual StreamMode mode() const = 0;
  virtual void submit(Task task) = 0;
  virtual void record(Event::Implementation& event) = 0;
  virtual void wait(Event::Implementation& event) = 0;
  virtual void wait_for_all() = 0;  // blocks the host; throws nothing
  virtual std::exception_ptr failure() const = 0;
};

namespace device {

std::unique_ptr<Stream::Implementation> make_cpu_stream(StreamOptions options);
std::unique_ptr<Stream::Implementation> make_cuda_stream(Device device, StreamOptions options);

}  // namespace device
}  // namespace tessera
