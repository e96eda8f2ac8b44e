// A trace as `--trace` of the trainers writes it (tessera/shard/trace.hpp), read back: its slices, without the arrows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace tools {

enum class SliceKind { computation, communication, window, wait, host };

// Times in microseconds, from the trace's beginning. Text is empty where the kind has none.
struct Slice {
  SliceKind kind;
  std::size_t rank;
  std::string stream;  // "compute", "gather", "reduce", "host"
  double begin;
  double end;
  std::size_t step;
  std::string name;
  std::string unit;
  std::string pass;        // of windows, and of the host's calls: "forward", "recompute", "backward", "update"
  std::string operation;   // what was done: "all-gather"; of a wait: what waited
  std::string cause = {};  // of a wait: what for
  std::string cause_stream = {};
  std::uint64_t bytes = 0;
  double host = 0;  // of the host's calls: what was its own

  double time() const { return end - begin; }
};

struct TraceFile {
  std::size_t first_step;
  std::size_t last_step;
  std::size_t ranks;        // of the job
  std::size_t stages;       // of a pipeline; 1: of none
  std::string description;  // "fsdp, prefetch 1, 1 micro-batch, 5 units"
  std::vector<Slice> slices;

  std::size_t steps() const { return last_step - first_step + 1; }
};

// Throws tessera::DataError, one line with the path, for what is no such file.
TraceFile read_trace(const std::filesystem::path& path);

}  // namespace tools
