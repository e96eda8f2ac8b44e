// Logs of ranks are appended to, so that several processes or launches of one program may share a directory.
#include "comm/rank_log.hpp"

#include <fcntl.h>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <ctime>
#include <system_error>

#include "tessera/base/error.hpp"

namespace tessera::comm {

std::filesystem::path rank_log_path(const std::filesystem::path& directory, int rank) {
  return directory / fmt::format("rank-{}.log", rank);
}

RankLog::RankLog(const std::optional<std::filesystem::path>& directory, int rank) {
  if (!directory) return;
  std::error_code error;
  std::filesystem::create_directories(*directory, error);
  const std::filesystem::path path = rank_log_path(*directory, rank);
  file_.reset(std::fopen(path.c_str(), "a"));
  if (file_) return;
  throw DataError(fmt::format("{}: cannot be written ({}); --log-dir needs a directory that can", path.string(),
                              std::generic_category().message(errno)));
}

void RankLog::line(std::string_view text) noexcept {
  if (!file_) return;
  try {
    const std::lock_guard lock(mutex_);
    fmt::print(file_.get(), "{:%H:%M:%S} {}\n", fmt::localtime(std::time(nullptr)), text);
    std::fflush(file_.get());
  } catch (...) {
  }
}

// Not fmt::print, which throws where nothing can be written.
void say(const std::string& lines) noexcept { std::fputs(lines.c_str(), stderr); }

void warn(RankLog& log, int rank, std::string_view text) noexcept {
  try {
    say(fmt::format("warning: rank {}: {}\n", rank, text));
    log.line(fmt::format("warning: {}", text));
  } catch (...) {
  }
}

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
