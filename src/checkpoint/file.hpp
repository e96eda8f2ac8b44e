// An open file with positioned reads and writes. Every failure is a DataError that begins with the path.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "tessera/base/bytes.hpp"

struct iovec;

namespace tessera::checkpoint {

class File {
 public:
  static File open_to_read(const std::filesystem::path& path);   // a regular file only
  static File open_to_write(const std::filesystem::path& path);  // one that exists, and is no symbolic link
  static File create_new(const std::filesystem::path& path);     // one that does not exist; to write
  // A new file, locked against other writers for as long as it is open. One of this name that nobody has locked, which
  // a program that died left behind, is removed first, and never written to. A symbolic link is an error.
  static File create_locked(const std::filesystem::path& path);
  // The same lock on a file that stays as it is. Made when it does not exist. Where the file system has no locks
  // (Lustre that was mounted without flock), both return a file without one.
  static File lock(const std::filesystem::path& path);

  File(File&& other) noexcept;
  File& operator=(File&& other) noexcept;
  ~File();

  std::uint64_t size() const;
  bool locked() const { return locked_; }
  bool still_has_its_name() const;  // false once it was removed, or another file took the name
  void read(std::uint64_t offset, std::span<std::byte> to) const;  // all of it, or an error
  // The same into several places in turn, in few system calls.
  void read_scattered(std::uint64_t offset, std::span<const std::span<std::byte>> to) const;
  // Lets the system read ahead while the caller does something else. No error: it is a hint.
  void expect(std::uint64_t offset, Bytes size) const;
  void write(std::uint64_t offset, std::span<const std::byte> from);
  void write(std::uint64_t offset, std::span<const std::span<const std::byte>> from);  // one after the other
  void begin_flush(std::uint64_t offset, std::uint64_t size);  // a hint: the device may begin with these bytes
  void resize(std::uint64_t size);
  void flush();

 private:
  File(int handle, std::filesystem::path path) : handle_(handle), path_(std::move(path)) {}
  void take_lock();  // throws where another program has it
  void write_all(std::uint64_t offset, std::span<iovec> parts);

  int handle_;
  std::filesystem::path path_;
  bool locked_ = false;
};

// All of a small file. Throws DataError also where it is longer than `limit`.
std::string read_whole(const std::filesystem::path& path, Bytes limit);

// A new file with this text, on the device. An existing one is an error.
void write_new_file(const std::filesystem::path& path, std::string_view text);
// The folder's entries are on the device.
void flush_folder(const std::filesystem::path& folder);

// Renames within a folder, and makes that last.
void rename_durably(const std::filesystem::path& from, const std::filesystem::path& to);

// Throws DataError: the path, what was tried, and what errno says.
[[noreturn]] void fail(const std::filesystem::path& path, std::string_view tried);

}  // namespace tessera::checkpoint
