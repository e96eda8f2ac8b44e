// The descriptor of standard output, put aside.
#include "comm/quiet_output.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <string>

#include "comm/rank_log.hpp"

namespace tessera::comm {

QuietOutput::QuietOutput(const LaunchOptions& options, int rank) {
  if (rank == 0) return;
  const std::string path = options.log_dir ? rank_log_path(*options.log_dir, rank).string() : "/dev/null";
  std::fflush(stdout);
  const int file = ::open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
  if (file < 0) return;
  before_ = ::dup(STDOUT_FILENO);
  ::dup2(file, STDOUT_FILENO);
  ::close(file);
}

QuietOutput::~QuietOutput() {
  if (before_ < 0) return;
  std::fflush(stdout);
  ::dup2(before_, STDOUT_FILENO);
  ::close(before_);
}

}  // namespace tessera::comm
