// Files of data: one that is read at any place while it is open, one that is read whole, and what stands under a path.
// Errors: DataError; the text begins with the path.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#pragma GCC visibility push(default)

namespace tessera::data {

// Open as long as this object lives. Not mapped: what is cut off while it is read is an error then, and no signal.
// Thread safety: all of it may be used from several threads.
class OpenFile {
 public:
  // Throws DataError: missing, not a regular file, cannot be opened. kind: what the file should be, "a CSV file".
  OpenFile(const std::filesystem::path& path, std::string_view kind);
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;
  ~OpenFile();

  std::size_t size() const { return size_; }  // when it was opened

  // All of it, or an error.
  void read(std::size_t offset, std::span<std::byte> to) const;

 private:
  std::size_t examined_size(std::string_view kind) const;

  std::string path_;
  int descriptor_;
  std::size_t size_ = 0;
};

// All bytes of a file. Throws as OpenFile does.
std::string read_whole_file(const std::filesystem::path& path, std::string_view kind);

// Returns what stands there, or nothing, where links lead. Throws DataError where that cannot be told.
std::filesystem::file_status examined(const std::filesystem::path& path);

}  // namespace tessera::data

#pragma GCC visibility pop
