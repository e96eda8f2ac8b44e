// --trace: which steps of a run are measured, and when the file is written.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>

#include "tessera/shard/fully_shard.hpp"
#include "tessera/trainer/run_options.hpp"

namespace tessera::trainer {

// Without --trace-steps: `default_traced_steps` after the first `untraced_steps` of this run, which are slower than
// the others, or what there is of a shorter run.
inline constexpr std::size_t untraced_steps = 2;
inline constexpr std::size_t default_traced_steps = 3;

void add_trace_options(CommandLine& line, RunOptions& options);

// "A-B", and that it goes with --trace. Throws OptionError.
void check_trace_options(const CommandLine& line, RunOptions& options);

// Throws OptionError for steps that are beyond this run's last one.
void require_traced_steps(const RunOptions& options, const RunLength& length);

class RunTrace {
 public:
  using Say = std::function<void(const std::string&)>;

  // `done_before`: steps of the run that this one resumes. Throws OptionError for steps that are over.
  RunTrace(tessera::FullyShard& model, const RunOptions& options, const RunLength& length, std::size_t done_before);

  // Writes the file after the last of its steps, and says so. Collective.
  void after(std::size_t step, const Say& say);

  tessera::Bytes size() const { return trace_ ? trace_->size() : tessera::Bytes(0); }

 private:
  std::filesystem::path path_;
  TracedSteps steps_{};
  std::optional<tessera::Trace> trace_;
};

}  // namespace tessera::trainer
