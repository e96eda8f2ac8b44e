// Names of devices.
#include "tessera/device/device.hpp"

#include <fmt/format.h>

namespace tessera {

std::string to_string(Device device) {
  return device.kind() == DeviceKind::cpu ? "cpu" : fmt::format("cuda:{}", device.index());
}

}  // namespace tessera
