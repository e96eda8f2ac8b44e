// Measures the machine at hand: products, convolutions, passes over memory, launches, updates of what stands on disk,
// and collectives of ranks that are threads.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <vector>

#include "machine/machine.hpp"
#include "trace/trace_file.hpp"

namespace tools {

struct Calibration {
  std::string name;
  std::size_t ranks;           // threads that exchange data; at least 2
  double seconds;              // of measuring, about
  std::filesystem::path disk;  // a folder of the disk that is measured
};

// Medians. Takes 128 MiB of memory, and for each rank as much and a little more; and 64 MiB of the disk, of which
// nothing is left. Throws DataError, naming the folder, where the disk cannot be used.
Machine calibrate(const Calibration& calibration);

// Replaces in `base` what traces of ranks on one host say of collectives and of passes over memory. Throws UsageError
// where they have nothing of either.
Machine from_traces(Machine base, const std::vector<TraceFile>& traces);

}  // namespace tools
