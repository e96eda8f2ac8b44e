// A trace says what the operations of a plan really took in some steps of a running model, as a file for Perfetto
// (https://ui.perfetto.dev, Chrome's JSON trace format) and for `tessera trace summary`.
// A process for each rank, a thread for each stream and for the host. Every operation of the traced steps stands there
// once: its stream, unit and bytes, how long it took, how long its stream stood in each wait, and an arrow from what it
// waited for. The user's windows are operations like the others; an outer step belongs to the step that it follows.
// Evaluations are not traced.
//
// Thread safety: none; it belongs to its rank's thread. Allocates when it is made and when it is written.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>

#include "tessera/base/bytes.hpp"

#pragma GCC visibility push(default)

namespace tessera {

class ModelSteps;
class [[gnu::visibility("hidden")]] TraceRecorder;

// Steps `first` to `last`, both included. `next` is the number of the step that the model does next: 1, or what a
// resumed run has come to. Of several programs only the steps of the traced one count.
struct TraceSteps {
  std::size_t first = 1;
  std::size_t last = 1;
  std::size_t next = 1;
};

// Made by FullyShard::trace().
class Trace {
 public:
  Trace(ModelSteps& model, std::shared_ptr<TraceRecorder> recorder);

  // Whether all of its steps have been launched.
  bool complete() const;
  // Host memory that it holds, beside the model's arena.
  Bytes size() const;

  // Brings the ranks' times together and lets rank 0 write the file, which appears whole or not at all. Ranks of one
  // host share one clock, so their times compare to the nanosecond; other hosts' clocks are aligned by the ends of
  // barriers, to within what a barrier takes. Of a simulated rank the file has that rank alone. Collective;
  // synchronises the model, which must be alive. Throws UsageError while it is not complete, and on all ranks DataError
  // when the file cannot be written.
  void write(const std::filesystem::path& path);

 private:
  ModelSteps* model_;
  std::shared_ptr<TraceRecorder> recorder_;
};

}  // namespace tessera

#pragma GCC visibility pop
