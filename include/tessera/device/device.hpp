// A place where memory lives and streams run: the CPU, or one CUDA device. A value; cheap to copy.
#pragma once

#include <string>

#pragma GCC visibility push(default)

namespace tessera {

enum class DeviceKind { cpu, cuda };

class Device {
 public:
  static Device cpu() { return Device(DeviceKind::cpu, 0); }
  // Throws UnavailableError when this build has no CUDA half or the machine no such device.
  static Device cuda(int index);

  DeviceKind kind() const { return kind_; }
  int index() const { return index_; }
  friend bool operator==(Device, Device) = default;

 private:
  Device(DeviceKind kind, int index) : kind_(kind), index_(index) {}
  DeviceKind kind_;
  int index_;
};

std::string to_string(Device device);  // "cpu", "cuda:0"

}  // namespace tessera

#pragma GCC visibility pop
