// Standard output of ranks that are processes: rank 0's is the job's.
#pragma once

#include "tessera/comm/run.hpp"

namespace tessera::comm {

// While it lives, what ranks from 1 on print goes to their logs, or nowhere.
class QuietOutput {
 public:
  QuietOutput(const LaunchOptions& options, int rank);
  ~QuietOutput();
  QuietOutput(const QuietOutput&) = delete;
  QuietOutput& operator=(const QuietOutput&) = delete;

 private:
  int before_ = -1;
};

}  // namespace tessera::comm
