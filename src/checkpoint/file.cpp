// Files through POSIX: positioned reads and writes need no shared position, so ranks can share one file.
#include "checkpoint/file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <limits>

#include "tessera/base/error.hpp"

namespace tessera::checkpoint {

namespace {

constexpr int no_handle = -1;

int open_handle(const std::filesystem::path& path, int flags) {
  // O_NONBLOCK: a pipe in the place of a file is an error later, not a wait for its other end.
  int handle = no_handle;
  do {
    handle = ::open(path.c_str(), flags | O_CLOEXEC | O_NONBLOCK, 0666);
  } while (handle < 0 && errno == EINTR);
  return handle;
}

struct stat status_of(int handle, const std::filesystem::path& path) {
  struct stat status {};
  if (::fstat(handle, &status) != 0) fail(path, "cannot be examined");
  return status;
}

void require_regular(mode_t mode, const std::filesystem::path& path) {
  if (S_ISDIR(mode)) throw DataError(fmt::format("{}: is a directory, not a file", path.string()));
  if (!S_ISREG(mode)) throw DataError(fmt::format("{}: is not a regular file", path.string()));
}

// After an open() with O_NOFOLLOW.
[[noreturn]] void fail_unfollowed(const std::filesystem::path& path, std::string_view tried) {
  if (errno != ELOOP) fail(path, tried);
  throw DataError(fmt::format("{}: is a symbolic link, which nothing is written through: remove it", path.string()));
}

off_t to_offset(std::uint64_t offset, const std::filesystem::path& path) {
  if (offset > static_cast<std::uint64_t>(std::numeric_limits<off_t>::max())) {
    throw DataError(fmt::format("{}: {} bytes are more than a file can have", path.string(), offset));
  }
  return static_cast<off_t>(offset);
}

}  // namespace

void fail(const std::filesystem::path& path, std::string_view tried) {
  throw DataError(fmt::format("{}: {}: {}", path.string(), tried, std::strerror(errno)));
}

File::File(File&& other) noexcept
    : handle_(std::exchange(other.handle_, no_handle)), path_(std::move(other.path_)), locked_(other.locked_) {}

File& File::operator=(File&& other) noexcept {
  std::swap(handle_, other.handle_);
  std::swap(path_, other.path_);
  std::swap(locked_, other.locked_);
  return *this;
}

File::~File() {
  if (handle_ != no_handle) ::close(handle_);
}

File File::open_to_read(const std::filesystem::path& path) {
  const int handle = open_handle(path, O_RDONLY);
  if (handle < 0) fail(path, "cannot be opened");
  File file(handle, path);
  require_regular(status_of(handle, path).st_mode, path);
  return file;
}

File File::open_to_write(const std::filesystem::path& path) {
  const int handle = open_handle(path, O_WRONLY | O_NOFOLLOW);
  if (handle < 0) fail_unfollowed(path, "cannot be opened for writing");
  return {handle, path};
}

File File::create_new(const std::filesystem::path& path) {
  const int handle = open_handle(path, O_WRONLY | O_CREAT | O_EXCL);
  if (handle < 0) fail(path, "cannot be created");
  return {handle, path};
}

void File::take_lock() {
  locked_ = ::flock(handle_, LOCK_EX | LOCK_NB) == 0;
  if (locked_) return;
  if (errno == EWOULDBLOCK) throw DataError(fmt::format("{}: another program is writing this file", path_.string()));
  const bool has_no_locks = errno == ENOSYS || errno == EOPNOTSUPP || errno == ENOLCK || errno == EINVAL;
  if (!has_no_locks) fail(path_, "cannot be locked");
}

File File::lock(const std::filesystem::path& path) {
  for (;;) {
    const int handle = open_handle(path, O_RDWR | O_CREAT | O_NOFOLLOW);
    if (handle < 0) fail_unfollowed(path, "cannot be created");
    File file(handle, path);
    require_regular(status_of(handle, path).st_mode, path);
    file.take_lock();
    // Whoever had it before may have removed it between our opening and locking it.
    if (file.still_has_its_name()) return file;
  }
}

// The file of a program that died may have been planted, or be another name of somebody's file: nothing is written to
// what was there.
File File::create_locked(const std::filesystem::path& path) {
  for (;;) {
    const int handle = open_handle(path, O_RDWR | O_CREAT | O_EXCL);
    if (handle < 0 && errno != EEXIST) fail(path, "cannot be created");
    if (handle >= 0) {
      File file(handle, path);
      file.take_lock();
      if (file.still_has_its_name()) return file;
      continue;
    }
    const File left = lock(path);
    if (::unlink(path.c_str()) != 0) fail(path, "cannot be removed");
  }
}

bool File::still_has_its_name() const {
  struct stat named {};
  const struct stat mine = status_of(handle_, path_);
  return ::lstat(path_.c_str(), &named) == 0 && named.st_dev == mine.st_dev && named.st_ino == mine.st_ino;
}

std::uint64_t File::size() const { return static_cast<std::uint64_t>(status_of(handle_, path_).st_size); }

void File::read(std::uint64_t offset, std::span<std::byte> to) const { read_scattered(offset, std::span(&to, 1)); }

void File::read_scattered(std::uint64_t offset, std::span<const std::span<std::byte>> to) const {
  std::array<iovec, 64> vectors;
  std::size_t skipped = 0;  // bytes of to.front() that were read
  for (;;) {
    for (; !to.empty() && skipped >= to.front().size(); to = to.subspan(1)) skipped -= to.front().size();
    if (to.empty()) return;
    const std::size_t count = std::min(vectors.size(), to.size());
    for (std::size_t i = 0; i < count; ++i) {
      const std::span<std::byte> span = i == 0 ? to[0].subspan(skipped) : to[i];
      vectors[i] = {.iov_base = span.data(), .iov_len = span.size()};
    }
    const ssize_t result = ::preadv(handle_, vectors.data(), static_cast<int>(count), to_offset(offset, path_));
    if (result < 0 && errno == EINTR) continue;
    if (result < 0) fail(path_, "cannot be read");
    if (result == 0) throw DataError(fmt::format("{}: ends at byte {}, before its data does", path_.string(), offset));
    offset += static_cast<std::uint64_t>(result);
    skipped += static_cast<std::size_t>(result);
  }
}

void File::expect(std::uint64_t offset, Bytes size) const {
  ::posix_fadvise(handle_, to_offset(offset, path_), to_offset(size.count(), path_), POSIX_FADV_WILLNEED);
}

void File::write(std::uint64_t offset, std::span<const std::byte> from) { write(offset, std::span(&from, 1)); }

void File::write(std::uint64_t offset, std::span<const std::span<const std::byte>> from) {
  constexpr std::size_t at_once = 512;  // below IOV_MAX everywhere
  std::array<iovec, at_once> parts;
  while (!from.empty()) {
    const std::size_t count = std::min(at_once, from.size());
    std::size_t size = 0;
    for (std::size_t i = 0; i < count; ++i) {
      parts[i] = {const_cast<std::byte*>(from[i].data()), from[i].size()};
      size += from[i].size();
    }
    write_all(offset, std::span(parts).first(count));
    offset += size;
    from = from.subspan(count);
  }
}

// Changes the parts.
void File::write_all(std::uint64_t offset, std::span<iovec> parts) {
  while (!parts.empty()) {
    const ssize_t count = ::pwritev(handle_, parts.data(), static_cast<int>(parts.size()), to_offset(offset, path_));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail(path_, "cannot be written");
    offset += static_cast<std::uint64_t>(count);
    auto left = static_cast<std::size_t>(count);
    while (!parts.empty() && left >= parts.front().iov_len) {
      left -= parts.front().iov_len;
      parts = parts.subspan(1);
    }
    if (parts.empty()) return;
    parts.front().iov_base = static_cast<std::byte*>(parts.front().iov_base) + left;
    parts.front().iov_len -= left;
  }
}

void File::begin_flush(std::uint64_t offset, std::uint64_t size) {
  // Not every file system has it, and flush() reports what goes wrong.
  ::sync_file_range(handle_, to_offset(offset, path_), to_offset(size, path_), SYNC_FILE_RANGE_WRITE);
}

void File::resize(std::uint64_t size) {
  if (::ftruncate(handle_, to_offset(size, path_)) != 0) fail(path_, "cannot be given its size");
}

void File::flush() {
  if (::fsync(handle_) != 0) fail(path_, "cannot be flushed");
}

std::string read_whole(const std::filesystem::path& path, Bytes limit) {
  const File file = File::open_to_read(path);
  const std::uint64_t size = file.size();
  if (size > limit.count()) {
    throw DataError(fmt::format("{}: has {} bytes; more than {} are refused", path.string(), size, limit.count()));
  }
  std::string text(size, '\0');
  file.read(0, std::as_writable_bytes(std::span(text)));
  return text;
}

void write_new_file(const std::filesystem::path& path, std::string_view text) {
  File file = File::create_new(path);
  file.write(0, std::as_bytes(std::span(text)));
  file.flush();
}

void flush_folder(const std::filesystem::path& folder) {
  const int handle = open_handle(folder, O_RDONLY | O_DIRECTORY);
  if (handle < 0) fail(folder, "cannot be opened to flush it");
  const int result = ::fsync(handle);
  const int error = errno;
  ::close(handle);
  errno = error;
  if (result != 0) fail(folder, "cannot be flushed");
}

void rename_durably(const std::filesystem::path& from, const std::filesystem::path& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) fail(to, "cannot be put in place");
  const std::filesystem::path folder = to.has_parent_path() ? to.parent_path() : ".";
  const int handle = open_handle(folder, O_RDONLY | O_DIRECTORY);
  if (handle < 0) return;  // a folder that may not be read: the file is in place all the same
  ::fsync(handle);
  ::close(handle);
}

}  // namespace tessera::checkpoint
