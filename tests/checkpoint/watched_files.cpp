// The stand-ins. Each runs the real function under one lock, so that the order in which operations are written down is
// one in which they happened.
#include "watched_files.hpp"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

namespace watched {

const char* to_string(Call call) {
  switch (call) {
    case Call::make_folder: return "mkdir";
    case Call::create: return "open of a new file";
    case Call::resize: return "ftruncate";
    case Call::write: return "write";
    case Call::flush: return "fsync";
    case Call::rename: return "rename";
    case Call::remove: return "unlink";
  }
  return "?";
}

namespace {

struct Watch {
  std::recursive_mutex mutex;
  bool on = false;
  std::string folder;
  std::vector<Operation> operations;
  std::optional<Fault> fault;
  bool fault_happened = false;
  std::size_t calls[std::size(all_calls)] = {};
};

std::atomic<std::chrono::milliseconds> flush_time{};
std::atomic<bool> has_locks{true};

Watch& watch() {
  static Watch the_one;
  return the_one;
}

template <typename Function>
Function real(const char* name) {
  return reinterpret_cast<Function>(::dlsym(RTLD_NEXT, name));
}

// The path within the watched folder; nothing for a path outside.
std::optional<std::string> within(const std::string& path) {
  const std::string& folder = watch().folder;
  if (!watch().on || !path.starts_with(folder)) return std::nullopt;
  if (path.size() == folder.size()) return "";
  return path[folder.size()] == '/' ? std::optional(path.substr(folder.size() + 1)) : std::nullopt;
}

std::string path_of(int handle) {
  char buffer[4096];
  const ssize_t length = ::readlink(("/proc/self/fd/" + std::to_string(handle)).c_str(), buffer, sizeof(buffer));
  return length > 0 ? std::string(buffer, static_cast<std::size_t>(length)) : std::string();
}

std::string path_at(int folder, const char* name) {
  if (folder == AT_FDCWD || name[0] == '/') return name;
  return path_of(folder) + "/" + name;
}

// Whether this call is the one that fails.
bool fails(Call call) {
  Watch& w = watch();
  const std::size_t number = ++w.calls[static_cast<std::size_t>(call)];
  if (!w.fault || w.fault->call != call || w.fault->nth != number) return false;
  w.fault_happened = true;
  errno = w.fault->error;
  return true;
}

void note(Operation operation) { watch().operations.push_back(std::move(operation)); }

// Runs the call; writes it down when it is about the watched folder and succeeded.
template <typename Work>
int watch_call(const std::string& path, Operation operation, Work work) {
  const std::lock_guard lock(watch().mutex);
  const auto inside = within(path);
  if (!inside) return work();
  if (fails(operation.call)) return -1;
  const int result = work();
  operation.path = *inside;
  if (result == 0) note(std::move(operation));
  return result;
}

int open_watched(const std::string& path, int flags, mode_t mode) {
  using Open = int (*)(const char*, int, ...);
  static const auto real_open = real<Open>("open64");
  const std::lock_guard lock(watch().mutex);
  const auto inside = within(path);
  const bool is_new = inside && (flags & O_CREAT) != 0 && ::access(path.c_str(), F_OK) != 0;
  if (is_new && fails(Call::create)) return -1;
  const int handle = real_open(path.c_str(), flags, mode);
  if (is_new && handle >= 0) note({.call = Call::create, .path = *inside});
  return handle;
}

ssize_t write_watched(int handle, const iovec* parts, int count, off_t offset) {
  using Write = ssize_t (*)(int, const iovec*, int, off_t);
  static const auto real_write = real<Write>("pwritev64");
  const std::lock_guard lock(watch().mutex);
  const auto inside = within(path_of(handle));
  if (!inside) return real_write(handle, parts, count, offset);
  std::string bytes;
  for (int i = 0; i < count; ++i) bytes.append(static_cast<const char*>(parts[i].iov_base), parts[i].iov_len);
  if (fails(Call::write)) {
    if (errno != 0) return -1;
    bytes.resize((bytes.size() + 1) / 2);
  }
  iovec part{bytes.data(), bytes.size()};
  const ssize_t result = real_write(handle, &part, 1, offset);
  if (result < 0) return result;
  bytes.resize(static_cast<std::size_t>(result));
  note({.call = Call::write, .path = *inside, .offset = static_cast<std::uint64_t>(offset), .bytes = std::move(bytes)});
  return result;
}

}  // namespace

void start(const std::filesystem::path& folder) {
  Watch& w = watch();
  const std::lock_guard lock(w.mutex);
  w.on = true;
  w.folder = std::filesystem::canonical(folder).string();
  w.operations.clear();
  w.fault.reset();
  w.fault_happened = false;
  for (std::size_t& calls : w.calls) calls = 0;
}

std::vector<Operation> stop() {
  const std::lock_guard lock(watch().mutex);
  watch().on = false;
  return std::move(watch().operations);
}

void set_fault(const Fault& fault) {
  const std::lock_guard lock(watch().mutex);
  watch().fault = fault;
}

bool fault_happened() {
  const std::lock_guard lock(watch().mutex);
  return watch().fault_happened;
}

void set_flush_time(std::chrono::milliseconds time) { flush_time = time; }
void set_locks(bool on) { has_locks = on; }

}  // namespace watched

using namespace watched;

extern "C" {

int open64(const char* path, int flags, ...) {
  mode_t mode = 0;
  if ((flags & O_CREAT) != 0) {
    va_list arguments;
    va_start(arguments, flags);
    mode = static_cast<mode_t>(va_arg(arguments, int));
    va_end(arguments);
  }
  return open_watched(path, flags, mode);
}

int mkdir(const char* path, mode_t mode) noexcept {
  return watch_call(path, {.call = Call::make_folder, .path = {}},
                    [&] { return real<int (*)(const char*, mode_t)>("mkdir")(path, mode); });
}

int ftruncate64(int handle, off64_t size) noexcept {
  return watch_call(path_of(handle), {.call = Call::resize, .path = {}, .size = static_cast<std::uint64_t>(size)},
                    [&] { return real<int (*)(int, off64_t)>("ftruncate64")(handle, size); });
}

int fsync(int handle) {
  const std::string path = path_of(handle);
  std::this_thread::sleep_for(flush_time.load());
  return watch_call(path, {.call = Call::flush, .path = {}, .folder = std::filesystem::is_directory(path)},
                    [&] { return real<int (*)(int)>("fsync")(handle); });
}

ssize_t pwritev64(int handle, const iovec* parts, int count, off64_t offset) {
  return write_watched(handle, parts, count, offset);
}

ssize_t pwrite64(int handle, const void* data, size_t size, off64_t offset) {
  const iovec part{const_cast<void*>(data), size};
  return write_watched(handle, &part, 1, offset);
}

int rename(const char* from, const char* to) noexcept {
  return watch_call(from, {.call = Call::rename, .path = {}, .to = within(to).value_or("")},
                    [&] { return real<int (*)(const char*, const char*)>("rename")(from, to); });
}

int unlinkat(int folder, const char* name, int flags) noexcept {
  return watch_call(path_at(folder, name), {.call = Call::remove, .path = {}, .folder = (flags & AT_REMOVEDIR) != 0},
                    [&] { return real<int (*)(int, const char*, int)>("unlinkat")(folder, name, flags); });
}

// It has another name here, because flock is also a struct.
int stand_in_for_flock(int handle, int operation) noexcept __asm__("flock");
int stand_in_for_flock(int handle, int operation) noexcept {
  if (!has_locks) return errno = ENOSYS, -1;
  return real<int (*)(int, int)>("flock")(handle, operation);
}

int rmdir(const char* path) noexcept {
  return watch_call(path, {.call = Call::remove, .path = {}, .folder = true},
                    [&] { return real<int (*)(const char*)>("rmdir")(path); });
}

int unlink(const char* path) noexcept {
  return watch_call(path, {.call = Call::remove, .path = {}},
                    [&] { return real<int (*)(const char*)>("unlink")(path); });
}

int remove(const char* path) noexcept {
  const bool folder = std::filesystem::is_directory(path);
  return watch_call(path, {.call = Call::remove, .path = {}, .folder = folder},
                    [&] { return real<int (*)(const char*)>("remove")(path); });
}
}
