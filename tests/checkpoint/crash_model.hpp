// A device may hold this after a power failure, as POSIX allows it: a folder's entries are sure to be there once the
// folder was flushed, a file's bytes once the file was; of all else any part may be missing.
#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "watched_files.hpp"

namespace crash_model {

// Files by their paths. Folders show by what is in them.
using Files = std::map<std::string, std::string>;

class Device {
 public:
  // `before`: what was on it, for sure. The operations must stay.
  Device(Files before, std::span<const watched::Operation> operations);

  // Which of the first `count` operations a failure behind them may undo.
  std::vector<std::size_t> unsure(std::size_t count) const;
  // Returns what is there when the first `count` operations happened without those that `lost` holds for.
  Files after(std::size_t count, const std::vector<bool>& lost) const;

 private:
  Files before_;
  std::span<const watched::Operation> operations_;
};

}  // namespace crash_model
