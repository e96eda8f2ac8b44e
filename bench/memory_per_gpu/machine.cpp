// Linux: /proc, uname and the memory controller of control groups v2.
#include "memory_per_gpu/machine.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <sys/utsname.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <fstream>
#include <optional>
#include <thread>

namespace bench {

using tessera::Bytes;

namespace {

// Returns the text behind `key` and a colon in a file of such lines.
std::optional<std::string> field(const char* path, const std::string& key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.rfind(key, 0) != 0) continue;
    const std::size_t begin = line.find_first_not_of(" \t", line.find(':') + 1);
    return begin == std::string::npos ? std::string() : line.substr(begin);
  }
  return std::nullopt;
}

Bytes memory_field(const char* key) { return Bytes(std::stoull(field("/proc/meminfo", key).value_or("0")) * 1024); }

// Returns the bytes that the control group leaves; none where it has no limit.
std::optional<Bytes> left_in_control_group() {
  std::uint64_t limit = 0;
  std::uint64_t used = 0;
  if (!(std::ifstream("/sys/fs/cgroup/memory.max") >> limit)) return std::nullopt;  // "max" is no number
  if (!(std::ifstream("/sys/fs/cgroup/memory.current") >> used)) return std::nullopt;
  return Bytes(limit > used ? limit - used : 0);
}

}  // namespace

Bytes memory_to_take() {
  Bytes available = memory_field("MemAvailable");
  if (const auto left = left_in_control_group()) available = std::min(available, *left);
  return Bytes(available.count() / 2);
}

std::string machine() {
  utsname system{};
  uname(&system);
  return fmt::format("{} cores of {}, {}, {} {}", std::thread::hardware_concurrency(),
                     field("/proc/cpuinfo", "model name").value_or("an unnamed processor"),
                     to_string(memory_field("MemTotal")), system.sysname, system.release);
}

std::string today() { return fmt::format("{:%Y-%m-%d %H:%M} UTC", fmt::gmtime(std::time(nullptr))); }

}  // namespace bench
