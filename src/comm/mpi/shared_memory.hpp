// Memory that processes of one host share: a file without a name (memfd), which its owner makes and its peers open
// through the owner's entry in /proc. It is gone when the last process that maps it is, however that one ends.
#pragma once

#include <sys/types.h>

#include <cstddef>

#include "tessera/base/bytes.hpp"

namespace tessera::comm {

// Where peers find a file: valid while the owner lives and keeps it.
struct SharedFile {
  pid_t owner = 0;
  int descriptor = -1;
  Bytes size{};
};

// One mapping; move-only.
class SharedMemory {
 public:
  SharedMemory() = default;
  // Makes a file of `size` zero bytes, of which pages exist once they are written. Throws MemoryError.
  static SharedMemory make(const char* name, Bytes size);
  // Maps a peer's file. Throws CommunicationError naming the process when the system does not allow it.
  static SharedMemory open(const SharedFile& file);

  SharedMemory(SharedMemory&& other) noexcept { *this = static_cast<SharedMemory&&>(other); }
  SharedMemory& operator=(SharedMemory&& other) noexcept;
  ~SharedMemory() { close(); }

  // Of one that was made here: all its pages exist from now on. Throws MemoryError.
  void reserve();

  std::byte* data() const { return data_; }  // null when empty
  Bytes size() const { return size_; }
  SharedFile file() const;  // of one that was made here

 private:
  void map(int descriptor, Bytes size);
  void close() noexcept;

  std::byte* data_ = nullptr;
  Bytes size_{};
  int descriptor_ = -1;  // of one that was made here
};

}  // namespace tessera::comm
