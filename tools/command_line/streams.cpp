// The C library remembers per stream that a write has failed; the cause is kept here.
#include "command_line/streams.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>

namespace tools {

namespace {

int output_error = 0;  // errno of the first write to standard output that failed

void flush_output() noexcept {
  errno = 0;
  if (std::fflush(stdout) != 0 && output_error == 0) output_error = errno;
}

}  // namespace

void open_closed_streams() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(stream, F_GETFD) != -1 || errno != EBADF) continue;
    // The lowest free number is this one: those below it are open.
    if (open("/dev/null", O_RDWR) < 0) return;
  }
}

void tell(std::string_view text) noexcept {
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::fputc('\n', stderr);
}

void print(std::string_view text) noexcept {
  errno = 0;
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() && output_error == 0) output_error = errno;
  flush_output();
}

int exit_code(int code) noexcept {
  flush_output();
  if (std::ferror(stdout) == 0 && output_error == 0) return code;
  tell(std::string("error: standard output cannot be written: ") +
       std::strerror(output_error != 0 ? output_error : EIO));
  return code == 0 ? 1 : code;
}

}  // namespace tools
