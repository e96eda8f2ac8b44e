// Says which of the many ways not to be readable it was.
#include "tessera/data/open_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <system_error>

#include "tessera/base/error.hpp"

namespace tessera::data {

// Without O_NONBLOCK, opening a pipe would wait for somebody to write to it.
OpenFile::OpenFile(const std::filesystem::path& path, std::string_view kind)
    : path_(path.string()), descriptor_(::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
  if (descriptor_ < 0 && (errno == ENOENT || errno == ENOTDIR)) {
    throw DataError(fmt::format("{}: there is no such file", path_));
  }
  if (descriptor_ < 0) throw DataError(fmt::format("{}: cannot be opened: {}", path_, std::strerror(errno)));
  try {
    size_ = examined_size(kind);
  } catch (...) {
    ::close(descriptor_);
    throw;
  }
}

OpenFile::~OpenFile() { ::close(descriptor_); }

void OpenFile::read(std::size_t offset, std::span<std::byte> to) const {
  while (!to.empty()) {
    const ssize_t count = ::pread(descriptor_, to.data(), to.size(), static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw DataError(fmt::format("{}: cannot be read: {}", path_, std::strerror(errno)));
    if (count == 0) {
      throw DataError(fmt::format("{}: ends at byte {}, and had {} bytes when it was opened: it was cut off meanwhile",
                                  path_, examined_size(""), size_));
    }
    offset += static_cast<std::size_t>(count);
    to = to.subspan(static_cast<std::size_t>(count));
  }
}

std::size_t OpenFile::examined_size(std::string_view kind) const {
  struct stat status {};
  if (::fstat(descriptor_, &status) != 0) {
    throw DataError(fmt::format("{}: cannot be read: {}", path_, std::strerror(errno)));
  }
  if (S_ISDIR(status.st_mode)) throw DataError(fmt::format("{}: is a directory, not {}", path_, kind));
  if (!S_ISREG(status.st_mode)) throw DataError(fmt::format("{}: is not a regular file", path_));
  return static_cast<std::size_t>(status.st_size);
}

std::string read_whole_file(const std::filesystem::path& path, std::string_view kind) {
  const OpenFile file(path, kind);
  std::string text(file.size(), '\0');
  file.read(0, std::as_writable_bytes(std::span(text)));
  return text;
}

std::filesystem::file_status examined(const std::filesystem::path& path) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  if (std::filesystem::status_known(status)) return status;
  throw DataError(fmt::format("{}: cannot be examined: {}", path.string(), error.message()));
}

}  // namespace tessera::data
