// A file of one rank's, for values that are to take no memory. It has no name as soon as it is there, so nothing of it
// remains after its rank, however that ends. Reads and writes go past the page cache where the file system lets them
// (O_DIRECT) and place, size and memory are of whole pages; what is left of a page, and everything elsewhere, goes
// through it.
//
// Thread safety: ranges that do not overlap may be read and written at once.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

#include "tessera/base/bytes.hpp"

namespace tessera::device {

class DiskFile {
 public:
  // Takes all of `size` from the folder's file system at once, zero-filled. Throws DataError, naming the folder: it is
  // missing or not writable, or its file system has no room. Nothing where the size is 0.
  DiskFile(const std::filesystem::path& folder, Bytes size);
  ~DiskFile();
  DiskFile(const DiskFile&) = delete;
  DiskFile& operator=(const DiskFile&) = delete;

  Bytes size() const { return size_; }
  bool is_direct() const { return direct_ >= 0; }
  // The file's bytes as memory of the host, for who looks at single values between updates: what read() and write()
  // move is seen here, and the other way round. Null for a size of 0.
  std::byte* data() const { return data_; }

  // Both block until all is moved, and throw DataError, naming the folder.
  void read(Bytes from, std::span<std::byte> to);
  void write(Bytes to, std::span<const std::byte> from);

 private:
  void open();
  void reserve();
  void try_directly();
  void map();
  void close() noexcept;
  template <typename Move>
  void move(Bytes place, Bytes size, std::byte* memory, Move call);
  [[noreturn]] void refuse(const char* what, int error) const;

  std::filesystem::path folder_;
  Bytes size_;
  int plain_ = -1;
  int direct_ = -1;
  std::byte* data_ = nullptr;
};

}  // namespace tessera::device
