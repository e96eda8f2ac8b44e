// What torch's tensors take in memory of the host, by thread: on the CPU a rank's tensors are made and ended on its
// thread. Torch's allocator is counted from when this library is loaded.
#pragma once

#include "tessera/base/bytes.hpp"

namespace tessera::torch {

class TensorMemory {
 public:
  // From here on, on this thread.
  static void begin();
  // The most that this thread's tensors took at once since begin(), beyond what they took then.
  static Bytes most();
};

}  // namespace tessera::torch
