// This stands in place of the MPI half in a build without it.
#include "comm/halves.hpp"
#include "comm/mpi/mpi_introduction.hpp"
#include "tessera/base/error.hpp"

namespace tessera::comm {

bool has_mpi() { return false; }

Introduction& introduce_over_mpi(std::optional<int>, const MpiDeadlines&) {
  throw UnavailableError("this build of Tessera has no MPI half: build it with MPI (meson setup -Dmpi=enabled)");
}

}  // namespace tessera::comm
