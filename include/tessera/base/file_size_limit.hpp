// The limit on the size of files (ulimit -f, RLIMIT_FSIZE), as an error.
#pragma once

#include <csignal>

#pragma GCC visibility push(default)

namespace tessera {

// From here on, a write beyond the limit fails as one on a full device does, and whoever writes says so and names the
// file; without it a signal ends the process, and nobody says anything. Leaves a handler of the program's own in place.
// For main(), before threads start; run() calls it.
inline void make_file_size_limit_an_error() noexcept {
  const auto before = std::signal(SIGXFSZ, SIG_IGN);
  if (before != SIG_DFL && before != SIG_ERR) std::signal(SIGXFSZ, before);
}

}  // namespace tessera

#pragma GCC visibility pop
