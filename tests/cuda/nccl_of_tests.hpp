// Linked into a program with the emulated device, it stands in place of the library that a launch opens as NCCL.
#pragma once

#include "fake_nccl.hpp"

namespace tessera::comm {

// Returns the faults of the next NCCL that is opened.
FakeFaults& faults_of_opened_nccl();

}  // namespace tessera::comm
