// mmap, munmap and mremap, as the executable and all its libraries see them: the system calls, and a table of what is
// live. Programs that ask for 64-bit offsets call mmap64; this file must define both names, so it asks for none.
#undef _FILE_OFFSET_BITS
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdarg>
#include <mutex>

#include "probe/allocation_log.hpp"
#include "probe/mapping_table.hpp"

namespace tessera::probe {
namespace {

// Held over the system call that unmaps, so that no other thread's new mapping at the same address is forgotten.
constinit std::mutex mutex;
constinit MappingTable table;

std::size_t page_size() { return static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)); }

std::uintptr_t address_of(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer); }

std::size_t whole_pages(std::size_t size) { return round_up(size, page_size()); }

// Resident bytes of [begin, end), which is mapped.
std::size_t resident(std::uintptr_t begin, std::uintptr_t end) {
  const std::size_t page = page_size();
  std::array<unsigned char, 1024> in_core = {};
  std::size_t bytes = 0;
  for (std::uintptr_t first = begin / page * page; first < end; first += in_core.size() * page) {
    const std::size_t pages = std::min<std::size_t>(in_core.size(), (end - first + page - 1) / page);
    if (::mincore(reinterpret_cast<void*>(first), pages * page, in_core.data()) != 0) continue;
    for (std::size_t i = 0; i < pages; ++i) {
      const std::uintptr_t at = first + i * page;
      if ((in_core[i] & 1u) != 0) bytes += std::min(at + page, end) - std::max(at, begin);
    }
  }
  return bytes;
}

struct MapRequest {
  void* address;
  std::size_t size;
  int protection;
  int flags;
  int file;
  off_t offset;
};

void* map(const MapRequest& request) noexcept {
  const std::lock_guard lock(mutex);
  const long mapped = ::syscall(SYS_mmap, request.address, request.size, request.protection, request.flags,
                                request.file, request.offset);
  void* const result = reinterpret_cast<void*>(mapped);
  if (result != MAP_FAILED) table.add(address_of(result), whole_pages(request.size));
  return result;
}

void* noted(void* mapped) noexcept {
  if (mapped != MAP_FAILED) note_allocation();
  return mapped;
}

int unmap(void* address, std::size_t size) noexcept {
  const std::lock_guard lock(mutex);
  const long result = ::syscall(SYS_munmap, address, size);
  if (result == 0) table.remove(address_of(address), whole_pages(size));
  return static_cast<int>(result);
}

struct Move {
  void* from;
  std::size_t size;
  std::size_t new_size;
  int flags;
  void* target;
};

void* move(const Move& move) noexcept {
  const std::lock_guard lock(mutex);
  const long moved = ::syscall(SYS_mremap, move.from, move.size, move.new_size, move.flags, move.target);
  void* const result = reinterpret_cast<void*>(moved);
  if (result == MAP_FAILED) return result;
  table.remove(address_of(move.from), whole_pages(move.size));
  table.add(address_of(result), whole_pages(move.new_size));
  return result;
}

}  // namespace

bool available() { return true; }

Bytes measured(std::span<const std::byte> range) {
  const std::lock_guard lock(mutex);
  std::size_t bytes = 0;
  const std::uintptr_t begin = address_of(range.data());
  table.for_each_overlap(begin, begin + range.size(),
                         [&](std::uintptr_t from, std::uintptr_t to) { bytes += resident(from, to); });
  return Bytes(bytes);
}

Bytes mapping_of(const void* address) {
  const std::lock_guard lock(mutex);
  return table.size_at(address_of(address));
}

Mappings mappings() {
  const std::lock_guard lock(mutex);
  return table.totals();
}

}  // namespace tessera::probe

extern "C" {

void* mmap(void* address, size_t size, int protection, int flags, int file, off_t offset) noexcept {
  return tessera::probe::noted(tessera::probe::map({address, size, protection, flags, file, offset}));
}

void* mmap64(void* address, size_t size, int protection, int flags, int file, off64_t offset) noexcept {
  return tessera::probe::noted(tessera::probe::map({address, size, protection, flags, file, offset}));
}

int munmap(void* address, size_t size) noexcept { return tessera::probe::unmap(address, size); }

void* mremap(void* address, size_t size, size_t new_size, int flags, ...) noexcept {
  void* target = nullptr;
  if ((flags & MREMAP_FIXED) != 0) {
    va_list rest;
    va_start(rest, flags);
    target = va_arg(rest, void*);
    va_end(rest);
  }
  return tessera::probe::noted(tessera::probe::move({address, size, new_size, flags, target}));
}

}  // extern "C"
