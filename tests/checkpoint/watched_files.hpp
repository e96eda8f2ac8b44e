// Watches what this program does to files under one folder, in order, and makes chosen calls fail. Works by standing in
// front of the C library's functions.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace watched {

enum class Call { make_folder, create, resize, write, flush, rename, remove };
inline constexpr Call all_calls[] = {Call::make_folder, Call::create, Call::resize, Call::write,
                                     Call::flush,       Call::rename, Call::remove};
const char* to_string(Call call);

struct Operation {
  Call call;
  std::string path;          // within the folder; "" is the folder itself
  std::string to = {};       // of a rename
  std::uint64_t offset = 0;  // of a write
  std::string bytes = {};    // of a write
  std::uint64_t size = 0;    // of a resize
  bool folder = false;       // of a flush or a removal
};

// From now on; one at a time.
void start(const std::filesystem::path& folder);
// Returns the operations that succeeded, in an order in which they happened.
std::vector<Operation> stop();

// The `nth` such call from start() on (from 1) fails with `error`, or, where that is 0, writes half of what it should.
struct Fault {
  Call call;
  std::size_t nth;
  int error;
};
void set_fault(const Fault& fault);
bool fault_happened();

// Every fsync takes so long: of a slow device. Zero: no longer.
void set_flush_time(std::chrono::milliseconds time);
// Whether files can be locked.
void set_locks(bool on);

}  // namespace watched
