// One rank writes these: its log (how it began, its warnings, how it ended, one line each), and standard output, which
// of ranks that are processes is rank 0's alone.
//
// Thread safety: all of the log's.
#pragma once

#include <cstdio>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "comm/pinned.hpp"
#include "tessera/comm/run.hpp"

namespace tessera::comm {

// DIR/rank-3.log
std::filesystem::path rank_log_path(const std::filesystem::path& directory, int rank);

class RankLog {
 public:
  // Without a directory there is no file, and lines go nowhere. Makes the directory; throws DataError naming the path.
  RankLog(const std::optional<std::filesystem::path>& directory, int rank);

  // `12:34:56 text`. A full disk loses the line, never the job.
  void line(std::string_view text) noexcept;

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  std::mutex mutex_;
  std::unique_ptr<std::FILE, Close> file_;
};

// Writes to standard error, which may be full or closed: that is no reason to fail.
void say(const std::string& lines) noexcept;

// `warning: rank 3: text` on stderr, and in the log.
void warn(RankLog& log, int rank, std::string_view text) noexcept;

// While it lives, what ranks from 1 on print goes to their logs, or nowhere.
class QuietOutput : Pinned {
 public:
  QuietOutput(const LaunchOptions& options, int rank);
  ~QuietOutput();

 private:
  int before_ = -1;
};

}  // namespace tessera::comm
