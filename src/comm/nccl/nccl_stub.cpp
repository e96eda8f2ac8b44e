// This stands in place of NCCL in a build without its header.
#include "comm/halves.hpp"
#include "comm/nccl/nccl_library.hpp"
#include "tessera/base/error.hpp"

namespace tessera::comm {

bool has_nccl() { return false; }

std::unique_ptr<NcclLibrary> open_nccl(const std::string&) {
  throw UnavailableError(
      "this build of Tessera has no NCCL half: build it where the CUDA toolkit and nccl.h are (meson setup "
      "-Dcuda=enabled)");
}

}  // namespace tessera::comm
