// This stands in place of the MPI half in a build without it.
#include "comm/launch.hpp"
#include "tessera/base/error.hpp"

namespace tessera::comm {

bool has_mpi() { return false; }

std::exception_ptr launch_mpi_process(const Start&, const LaunchOptions&, const Launched&) {
  throw UnavailableError("this build of Tessera has no MPI half: build it with MPI (meson setup -Dmpi=enabled)");
}

}  // namespace tessera::comm
