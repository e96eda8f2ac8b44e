// Files without names, and their mappings.
#include "comm/processes/shared_memory.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <system_error>
#include <utility>

#include "tessera/base/error.hpp"
#include "tessera/device/arena.hpp"

namespace tessera::comm {

namespace {

std::string last_error() { return std::generic_category().message(errno); }

// Nobody changes the size, under which a mapping would end.
constexpr int sealed = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

// A stranger who answers in a rank's place may name any file that this user can open: only memory that a rank of this
// user has made is mapped.
bool is_shared_by_a_rank(int descriptor, Bytes size) {
  struct stat status {};
  if (::fstat(descriptor, &status) != 0) return false;
  const int seals = ::fcntl(descriptor, F_GET_SEALS);  // the system may have added some
  return S_ISREG(status.st_mode) && status.st_nlink == 0 && status.st_uid == ::geteuid() &&
         static_cast<std::uint64_t>(status.st_size) == size.count() && seals >= 0 && (seals & sealed) == sealed;
}

}  // namespace

SharedMemory SharedMemory::make(const char* name, Bytes size) {
  SharedMemory memory;
  memory.descriptor_ = ::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (memory.descriptor_ < 0 || ::ftruncate(memory.descriptor_, static_cast<off_t>(size.count())) != 0 ||
      ::fcntl(memory.descriptor_, F_ADD_SEALS, sealed) != 0) {
    throw MemoryError(fmt::format("{} of memory to share with the other ranks of this host cannot be had: {}",
                                  to_string(size), last_error()));
  }
  memory.map(size);
  return memory;
}

SharedMemory SharedMemory::open(const SharedFile& file) {
  const std::string path = fmt::format("/proc/{}/fd/{}", file.owner, file.descriptor);
  SharedMemory memory;
  memory.descriptor_ = ::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (memory.descriptor_ < 0) {
    throw CommunicationError(
        fmt::format("the memory that process {} shares with the ranks of its host cannot be opened: {}; has it ended, "
                    "or does it run as another user?",
                    file.owner, last_error()));
  }
  if (!is_shared_by_a_rank(memory.descriptor_, file.size)) {
    throw CommunicationError(
        fmt::format("file {} of process {}, which was named as memory that a rank of this host shares, is none: does "
                    "another program answer in a rank's place? Set TESSERA_TOKEN on all ranks",
                    file.descriptor, file.owner));
  }
  memory.map(file.size);
  ::close(std::exchange(memory.descriptor_, -1));
  return memory;
}

SharedMemory& SharedMemory::operator=(SharedMemory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

void SharedMemory::reserve() {
  const int status = ::posix_fallocate(descriptor_, 0, static_cast<off_t>(size_.count()));
  for (std::size_t offset = 0; status == 0 && offset < size_.count(); offset += Arena::page.count()) {
    static_cast<volatile std::byte*>(data_)[offset] = std::byte{0};
  }
  if (status == 0) return;
  throw MemoryError(fmt::format("{} ({} bytes) of memory to share with the other ranks of this host cannot be had: {}",
                                to_string(size_), size_.count(), std::generic_category().message(status)));
}

SharedFile SharedMemory::file() const { return {.owner = ::getpid(), .descriptor = descriptor_, .size = size_}; }

void SharedMemory::map(Bytes size) {
  if (size == Bytes(0)) return;
  void* mapped = ::mmap(nullptr, size.count(), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor_, 0);
  if (mapped == MAP_FAILED) {
    throw MemoryError(fmt::format("{} of memory shared with the other ranks of this host cannot be mapped: {}",
                                  to_string(size), last_error()));
  }
  data_ = static_cast<std::byte*>(mapped);
  size_ = size;
  ::madvise(data_, size.count(), MADV_HUGEPAGE);  // a wish: where it is refused, small pages do
}

void SharedMemory::close() noexcept {
  if (data_ != nullptr) ::munmap(data_, size_.count());
  if (descriptor_ >= 0) ::close(descriptor_);
}

}  // namespace tessera::comm
