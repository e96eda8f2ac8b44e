// What an event is on one kind of device; streams of that kind record and await it.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "tessera/device/event.hpp"

namespace tessera {

class Event::Implementation {
 public:
  virtual ~Implementation() = default;
  virtual Device device() const = 0;
  virtual const std::string& name() const = 0;
  virtual bool recorded() const = 0;
  virtual bool complete() const = 0;
  // Blocks the calling thread until complete(); false when the deadline passed first.
  virtual bool wait_on_host(std::chrono::steady_clock::time_point deadline) const = 0;
};

namespace device {

std::unique_ptr<Event::Implementation> make_cpu_event(std::string name);
std::unique_ptr<Event::Implementation> make_cuda_event(Device device, std::string name);

}  // namespace device
}  // namespace tessera
