// mmap and munmap, as the executable and all its libraries see them: the system calls, and a table of what is live,
// which needs no construction. Programs that ask for 64-bit offsets call mmap64; this file must define both names, so
// it asks for none. What the C library maps for itself (malloc's large blocks, threads' stacks) is not seen.
#undef _FILE_OFFSET_BITS
#include "probe/memory_probe.hpp"

#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <mutex>

namespace tessera::probe {
namespace {

struct Mapping {
  std::uintptr_t begin;
  std::uintptr_t end;
  int file = -1;
};

// Held over the system call that unmaps, so that no other thread's new mapping at the same address is forgotten.
constinit std::mutex mutex;
constinit std::array<Mapping, 4096> table = {};  // in no order; what finds no room in it is not measured
constinit std::size_t live = 0;
constinit std::size_t taken = 0;

std::uintptr_t page_size() { return static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE)); }

std::uintptr_t address_of(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer); }

Mapping mapping_at(const void* address, std::size_t size, int file = -1) {
  return {address_of(address), address_of(address) + round_up(size, page_size()), file};
}

void add(const Mapping& mapping) {
  if (mapping.begin < mapping.end && live < table.size()) table[live++] = mapping;
}

// Mappings inside what is given back go, others are cut.
void remove(const Mapping& gone) {
  for (std::size_t i = live; i > 0; --i) {
    const Mapping old = table[i - 1];
    if (old.end <= gone.begin || gone.end <= old.begin) continue;
    table[i - 1] = table[--live];
    add({old.begin, gone.begin, old.file});
    add({gone.end, old.end, old.file});
  }
}

// Resident bytes of [begin, end), which is mapped.
std::size_t resident(std::uintptr_t begin, std::uintptr_t end) {
  const std::uintptr_t page = page_size();
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
  if (result == MAP_FAILED) return result;
  const Mapping mapping = mapping_at(result, request.size, request.file);
  remove(mapping);  // MAP_FIXED replaces what was there
  add(mapping);
  ++taken;
  return result;
}

int unmap(void* address, std::size_t size) noexcept {
  const std::lock_guard lock(mutex);
  const long result = ::syscall(SYS_munmap, address, size);
  if (result == 0) remove(mapping_at(address, size));
  return static_cast<int>(result);
}

}  // namespace

bool available() { return true; }

Bytes measured(std::span<const std::byte> range) {
  const std::lock_guard lock(mutex);
  const std::uintptr_t begin = address_of(range.data()), end = begin + range.size();
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < live; ++i) {
    const std::uintptr_t from = std::max(begin, table[i].begin), to = std::min(end, table[i].end);
    if (from < to) bytes += resident(from, to);
  }
  return Bytes(bytes);
}

Bytes mapping_of(const void* address) {
  const std::lock_guard lock(mutex);
  const std::uintptr_t at = address_of(address);
  for (std::size_t i = 0; i < live; ++i) {
    if (table[i].begin <= at && at < table[i].end) return Bytes(table[i].end - table[i].begin);
  }
  return Bytes(0);
}

Bytes stored_at(const void* address) {
  const std::lock_guard lock(mutex);
  const std::uintptr_t at = address_of(address);
  for (std::size_t i = 0; i < live; ++i) {
    struct stat status {};
    if (table[i].begin > at || at >= table[i].end || ::fstat(table[i].file, &status) != 0) continue;
    constexpr std::uint64_t block = 512;  // whatever the file system's is
    return Bytes(
        std::min(static_cast<std::uint64_t>(status.st_size), static_cast<std::uint64_t>(status.st_blocks) * block));
  }
  return Bytes(0);
}

Mappings mappings() {
  const std::lock_guard lock(mutex);
  Bytes size;
  for (std::size_t i = 0; i < live; ++i) size += Bytes(table[i].end - table[i].begin);
  return {live, size, taken};
}

}  // namespace tessera::probe

extern "C" {

void* mmap(void* address, size_t size, int protection, int flags, int file, off_t offset) noexcept {
  return tessera::probe::map({address, size, protection, flags, file, offset});
}

void* mmap64(void* address, size_t size, int protection, int flags, int file, off64_t offset) noexcept {
  return tessera::probe::map({address, size, protection, flags, file, offset});
}

int munmap(void* address, size_t size) noexcept { return tessera::probe::unmap(address, size); }

}  // extern "C"
