// The C library remembers per stream that a write has failed; the cause is kept here.
#include "tessera/trainer/start.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <stdlib.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <string>
#include <system_error>

#include "tessera/base/error.hpp"
#include "tessera/base/file_size_limit.hpp"
#include "tessera/comm/start.hpp"
#include "tessera/trainer/command_line.hpp"

namespace tessera::trainer {

namespace {

int output_error = 0;  // errno of the first write to standard output that failed

void flush_output() noexcept {
  errno = 0;
  if (std::fflush(stdout) != 0 && output_error == 0) output_error = errno;
}

// Standard streams that the caller closed become /dev/null: a file opened later would take
// their number, and what is printed would go there.
void open_closed_streams() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(stream, F_GETFD) != -1 || errno != EBADF) continue;
    // The lowest free number is this one: those below it are open.
    if (open("/dev/null", O_RDWR) < 0) return;
  }
}

// `code`, or 1 in place of 0 where standard output did not take everything, which is said then.
int exit_code(int code) noexcept {
  flush_output();
  if (std::ferror(stdout) == 0 && output_error == 0) return code;
  tell(std::string("error: standard output cannot be written: ") +
       std::strerror(output_error != 0 ? output_error : EIO));
  return code == 0 ? 1 : code;
}

int failed(std::string_view prefix, const std::exception& error, int code) {
  if (is_first_process()) tell(fmt::format("{}: {}", prefix, error.what()));
  return code;
}

}  // namespace

void tell(std::string_view text) noexcept {
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::fputc('\n', stderr);
}

void print(std::string_view text) noexcept {
  errno = 0;
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() && output_error == 0) output_error = errno;
  flush_output();
}

int run_program(const std::function<int()>& body, std::string_view prefix) {
  open_closed_streams();
  make_file_size_limit_an_error();
  try {
    return exit_code(body());
  } catch (const OptionError& error) {
    return failed(prefix, error, exit_bad_options);
  } catch (const std::exception& error) {
    return failed(prefix, error, 1);
  }
}

void require_writable(const std::filesystem::path& path) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  if (std::filesystem::is_directory(status)) {
    throw tessera::DataError(fmt::format("{}: is a directory, so no file can be written there", path.string()));
  }
  if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status)) {
    throw tessera::DataError(fmt::format("{}: is not a regular file, and will not be replaced", path.string()));
  }
  std::string probe = path.string() + ".XXXXXX";
  const int file = mkstemp(probe.data());
  if (file < 0) {
    throw tessera::DataError(fmt::format("{}: cannot be written: {}", path.string(), std::strerror(errno)));
  }
  close(file);
  unlink(probe.c_str());
}

}  // namespace tessera::trainer
