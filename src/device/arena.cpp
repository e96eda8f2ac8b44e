// The arena: device memory and the bounds of what may be asked of it. On the CPU that is one anonymous mapping, every
// page touched at once.
#include "tessera/device/arena.hpp"

#include <fmt/format.h>
#include <sys/mman.h>

#include <cerrno>
#include <limits>
#include <system_error>
#include <utility>

#include "device/device_memory.hpp"
#include "tessera/base/error.hpp"

namespace tessera {
namespace device {
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

}  // namespace device

namespace {

std::unique_ptr<device::DeviceMemory> map(Device device, Bytes size) {
  if (size == Bytes(0)) return nullptr;
  return device.kind() == DeviceKind::cpu ? device::map_cpu_memory(size) : device::map_cuda_memory(device, size);
}

}  // namespace

Bytes Arena::whole_pages(Device device, Bytes size) {
  if (size.count() > std::numeric_limits<std::uint64_t>::max() - Arena::page.count()) {
    throw MemoryError(fmt::format("an arena of {} bytes cannot be had on {}: no address space is that large",
                                  size.count(), to_string(device)));
  }
  return round_up(size, Arena::page);
}

class Arena::Mapping {
 public:
  Mapping(Bytes size, std::unique_ptr<device::DeviceMemory> memory) : size_(size), memory_(std::move(memory)) {}
  Mapping(Device device, Bytes size) : size_(whole_pages(device, size)), memory_(map(device, size_)) {}

  Bytes size() const { return size_; }
  std::byte* data() { return memory_ ? memory_->data() : nullptr; }

 private:
  Bytes size_;
  std::unique_ptr<device::DeviceMemory> memory_;
};

Arena::Arena(Device device, Bytes size) : mapping_(std::make_unique<Mapping>(device, size)) {}
Arena Arena::on_host_of(Device device, Bytes size) {
  if (device.kind() == DeviceKind::cpu || size == Bytes(0)) return Arena(Device::cpu(), size);
  const Bytes pages = whole_pages(device, size);
  return Arena(pages, device::map_pinned_memory(device, pages));
}
Arena::Arena(Bytes size, std::unique_ptr<device::DeviceMemory> memory)
    : mapping_(std::make_unique<Mapping>(size, std::move(memory))) {}
Arena::Arena(Arena&&) noexcept = default;
Arena& Arena::operator=(Arena&&) noexcept = default;
Arena::~Arena() = default;

Bytes Arena::size() const { return mapping_->size(); }
std::byte* Arena::data() { return mapping_->data(); }

std::span<std::byte> Arena::range(Bytes offset, Bytes size) {
  if (offset > mapping_->size() || size > mapping_->size() - offset) {
    throw InternalError(fmt::format("range of {} bytes at offset {} lies outside the arena of {} bytes", size.count(),
                                    offset.count(), mapping_->size().count()));
  }
  return {mapping_->data() + offset.count(), size.count()};
}

}  // namespace tessera
