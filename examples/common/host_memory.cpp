// Linux: sysconf, and the memory controller of control groups v2.
#include "common/host_memory.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <fstream>

namespace examples {

tessera::Bytes host_memory() {
  const auto pages = static_cast<std::uint64_t>(std::max(0L, sysconf(_SC_PHYS_PAGES)));
  const auto page = static_cast<std::uint64_t>(std::max(0L, sysconf(_SC_PAGESIZE)));
  std::uint64_t bytes = pages * page;
  std::uint64_t limit = 0;
  if (std::ifstream("/sys/fs/cgroup/memory.max") >> limit) bytes = std::min(bytes, limit);  // "max" is no number
  return tessera::Bytes(bytes);
}

}  // namespace examples
