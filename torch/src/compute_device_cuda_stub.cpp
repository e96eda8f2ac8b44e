// This stands in place of CUDA where torch or Tessera was built without it.
#include "src/compute_device.hpp"
#include "tessera/base/error.hpp"

namespace tessera::torch {

std::unique_ptr<ComputeDevice> make_cuda_compute_device(Device) {
  throw UnavailableError(
      "torch modules are sharded on the CPU only in this build: run with --device cpu, or build Tessera with the CUDA "
      "toolkit and a libtorch that has CUDA (TORCH_DIR)");
}

}  // namespace tessera::torch
