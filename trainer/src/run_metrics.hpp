// Where a run's metrics go: the file of --metrics, the files of --tensorboard, both, or nowhere.
#pragma once

#include <cstddef>
#include <optional>

#include "tessera/trainer/run_options.hpp"
#include "trainer/src/event_file.hpp"
#include "trainer/src/metrics.hpp"

namespace tessera::trainer {

class RunMetrics {
 public:
  // Makes the files. Throws DataError naming the one that cannot be written.
  explicit RunMetrics(const RunOptions& options);

  // Before the first write(): a run from its first step on,
  void begin();
  // or one that was resumed: steps after so many are taken again.
  void keep_first(std::size_t steps);
  // Writes the line of one step.
  void write(const tools::Json& object);

 private:
  std::optional<MetricsFile> lines_;
  std::optional<EventFile> events_;
};

}  // namespace tessera::trainer
