// A file mapped into memory, read only, as long as this object lives.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

namespace tessera::data {

class MappedFile {
 public:
  // Throws DataError naming the path: missing, not a regular file, empty, cannot be opened or mapped.
  explicit MappedFile(const std::filesystem::path& path);
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::span<const std::byte> bytes_;
};

}  // namespace tessera::data
