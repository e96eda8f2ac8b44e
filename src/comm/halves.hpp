// Which of its optional halves this build of the library has: each says so itself, or its stub does.
#pragma once

namespace tessera::comm {

bool has_mpi();
bool has_nccl();  // nccl.h was there

}  // namespace tessera::comm
