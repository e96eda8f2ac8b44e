// One file under two descriptors: one past the page cache, and one through it.
#include "device/disk_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <string>
#include <system_error>
#include <utility>

#include "tessera/base/error.hpp"
#include "tessera/device/arena.hpp"

namespace tessera::device {

namespace {

std::string text_of(int error) { return std::generic_category().message(error); }

bool is_on_pages(std::uint64_t place) { return place % Arena::page.count() == 0; }

}  // namespace

DiskFile::DiskFile(const std::filesystem::path& folder, Bytes size) : folder_(folder), size_(size) {
  if (size == Bytes(0)) return;
  try {
    open();
    reserve();
    try_directly();
    map();
  } catch (...) {
    close();
    throw;
  }
}

DiskFile::~DiskFile() { close(); }

void DiskFile::open() {
  std::string name = (folder_ / "tessera-XXXXXX").string();
  plain_ = ::mkostemp(name.data(), O_CLOEXEC);
  if (plain_ < 0) {
    throw DataError(fmt::format(
        "{}: no file for values on disk can be made there: {}. Name a folder that is there and may be written to "
        "(FullyShardOptions::disk, --offload-to disk:FOLDER)",
        folder_.string(), text_of(errno)));
  }
  direct_ = ::open(name.c_str(), O_RDWR | O_DIRECT | O_CLOEXEC);  // without it all goes through the page cache
  ::unlink(name.c_str());
}

// Asked first, because a file system takes what there is before it says that it is not enough.
void DiskFile::reserve() {
  std::error_code unknown;
  const Bytes free(std::filesystem::space(folder_, unknown).available);
  int status = !unknown && free < size_ ? ENOSPC : EINTR;
  while (status == EINTR) status = ::posix_fallocate(plain_, 0, static_cast<off_t>(size_.count()));
  if (status == 0) return;
  throw DataError(fmt::format(
      "{}: {} ({} bytes) for values on disk cannot be had there: {}; {} are free. Make room, name a folder of another "
      "file system, or offload fewer units (Offload::units, --offload-units)",
      folder_.string(), to_string(size_), size_.count(), text_of(status),
      unknown ? "nobody knows how many bytes" : to_string(free)));
}

// A file system may take O_DIRECT and then want larger pages than ours.
void DiskFile::try_directly() {
  alignas(Arena::page.count()) static constexpr std::array<std::byte, Arena::page.count()> zeros{};
  if (direct_ < 0 || ::pwrite(direct_, zeros.data(), zeros.size(), 0) == static_cast<ssize_t>(zeros.size())) return;
  ::close(std::exchange(direct_, -1));
}

void DiskFile::map() {
  void* mapped = ::mmap(nullptr, size_.count(), PROT_READ | PROT_WRITE, MAP_SHARED, plain_, 0);
  if (mapped == MAP_FAILED) refuse("its file cannot be mapped", errno);
  data_ = static_cast<std::byte*>(mapped);
}

void DiskFile::close() noexcept {
  if (data_ != nullptr) ::munmap(data_, size_.count());
  if (direct_ >= 0) ::close(direct_);
  if (plain_ >= 0) ::close(plain_);
}

void DiskFile::refuse(const char* what, int error) const {
  throw DataError(fmt::format("{}: {}: {}. Look at the disk's health, or name a folder of another one",
                              folder_.string(), what, text_of(error)));
}

// A system call moves at most 2 GiB, and may move less than it is asked for.
template <typename Move>
void DiskFile::move(Bytes place, Bytes size, std::byte* memory, Move call) {
  while (size > Bytes(0)) {
    const bool aligned = is_on_pages(place.count()) && is_on_pages(reinterpret_cast<std::uintptr_t>(memory));
    const bool directly = direct_ >= 0 && aligned && size >= Arena::page;
    std::uint64_t count = std::min<std::uint64_t>(size.count(), std::uint64_t{1} << 30);
    if (directly) count -= count % Arena::page.count();
    const ssize_t moved = call(directly ? direct_ : plain_, memory, count, static_cast<off_t>(place.count()));
    if (moved < 0 && errno == EINTR) continue;
    if (moved <= 0) refuse("values on disk cannot be moved", moved < 0 ? errno : EIO);
    const Bytes done(static_cast<std::uint64_t>(moved));
    place += done;
    memory += done.count();
    size = size - done;
  }
}

void DiskFile::read(Bytes from, std::span<std::byte> to) { move(from, Bytes(to.size()), to.data(), ::pread); }

void DiskFile::write(Bytes to, std::span<const std::byte> from) {
  move(to, Bytes(from.size()), const_cast<std::byte*>(from.data()), ::pwrite);
}

}  // namespace tessera::device
