// Memory of the CPU: one anonymous mapping, every page touched at once.
#include <fmt/format.h>
#include <sys/mman.h>

#include <cerrno>
#include <system_error>

#include "device/device_memory.hpp"
#include "tessera/base/error.hpp"
#include "tessera/device/arena.hpp"

namespace tessera::device {
namespace {

class CpuMemory final : public DeviceMemory {
 public:
  explicit CpuMemory(Bytes size) : size_(size) {
    void* mapped = ::mmap(nullptr, size.count(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) {
      throw MemoryError(fmt::format("an arena of {} ({} bytes) cannot be had on cpu: {}", to_string(size), size.count(),
                                    std::generic_category().message(errno)));
    }
    data_ = static_cast<std::byte*>(mapped);
    ::madvise(data_, size.count(), MADV_HUGEPAGE);  // a wish: where it is refused, small pages do
    touch();
  }
  ~CpuMemory() override { ::munmap(data_, size_.count()); }
  CpuMemory(const CpuMemory&) = delete;
  CpuMemory& operator=(const CpuMemory&) = delete;

  std::byte* data() override { return data_; }

 private:
  void touch() {
    for (std::size_t offset = 0; offset < size_.count(); offset += Arena::page.count()) {
      static_cast<volatile std::byte*>(data_)[offset] = std::byte{0};
    }
  }

  std::byte* data_ = nullptr;
  Bytes size_;
};

}  // namespace

std::unique_ptr<DeviceMemory> map_cpu_memory(Bytes size) { return std::make_unique<CpuMemory>(size); }

}  // namespace tessera::device
