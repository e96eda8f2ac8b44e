// Counts what torch's tensors take in memory of the host, by thread: on the CPU a rank's tensors are made and ended on
// its thread. Torch's allocator is counted from when this library is loaded.
#pragma once

#include <cstdint>
#include <memory>

#include "tessera/base/bytes.hpp"

namespace tessera::torch {

// One of several that may count at once: a teacher's pass may come inside of a step of its student.
class TensorMemory {
 public:
  TensorMemory();

  // From here on, on this thread, the one that made it.
  void begin();
  // The most that this thread's tensors took at once since begin(), beyond what they took then.
  Bytes most() const;

  // In bytes, of the thread.
  struct Count {
    std::int64_t begun = 0;
    std::int64_t most = 0;
  };

 private:
  std::shared_ptr<Count> count_;  // shared with the thread, which may go on without this, or end before it
};

}  // namespace tessera::torch
