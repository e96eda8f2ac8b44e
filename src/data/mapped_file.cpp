// Mapping with mmap: pages come when they are read, and every process that maps the file shares them.
#include "data/mapped_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "tessera/base/error.hpp"

namespace tessera::data {

namespace {

class OpenFile {
 public:
  explicit OpenFile(const std::filesystem::path& path)
      // Without O_NONBLOCK, opening a pipe would wait for somebody to write to it.
      : path_(path.string()), descriptor_(::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
    if (descriptor_ >= 0) return;
    if (errno == ENOENT) throw DataError(fmt::format("{}: there is no such file", path_));
    throw DataError(fmt::format("{}: cannot be opened: {}", path_, std::strerror(errno)));
  }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;
  ~OpenFile() { ::close(descriptor_); }

  std::size_t size() const {
    struct stat status {};
    if (::fstat(descriptor_, &status) != 0) {
      throw DataError(fmt::format("{}: cannot be read: {}", path_, std::strerror(errno)));
    }
    if (S_ISDIR(status.st_mode)) throw DataError(fmt::format("{}: is a directory, not a file of tokens", path_));
    if (!S_ISREG(status.st_mode)) throw DataError(fmt::format("{}: is not a regular file", path_));
    if (status.st_size == 0) throw DataError(fmt::format("{}: is empty", path_));
    return static_cast<std::size_t>(status.st_size);
  }

  std::span<const std::byte> map(std::size_t size) const {
    const void* memory = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, descriptor_, 0);
    if (memory == MAP_FAILED) {
      throw DataError(fmt::format("{}: cannot be mapped into memory: {}", path_, std::strerror(errno)));
    }
    return {static_cast<const std::byte*>(memory), size};
  }

 private:
  std::string path_;
  int descriptor_;
};

}  // namespace

MappedFile::MappedFile(const std::filesystem::path& path) {
  const OpenFile file(path);
  bytes_ = file.map(file.size());
}

MappedFile::~MappedFile() { ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size()); }

}  // namespace tessera::data
