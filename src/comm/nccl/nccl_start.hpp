// What the environment and the launch options say of NCCL.
#pragma once

#include <cstdlib>
#include <memory>

#include "comm/nccl/nccl_group.hpp"
#include "comm/nccl/nccl_library.hpp"
#include "tessera/comm/run.hpp"

namespace tessera::comm {

// The library that TESSERA_NCCL names, or the system's. Throws as open_nccl() does.
inline std::unique_ptr<NcclLibrary> open_chosen_nccl() {
  const char* const path = std::getenv("TESSERA_NCCL");
  return open_nccl(path == nullptr ? "" : path);
}

inline NcclOptions nccl_options(const LaunchOptions& options) {
  return {.sums = options.sums == SumChoice::fast ? NcclSums::fast : NcclSums::ranked};
}

}  // namespace tessera::comm
