// The step's scalars: one thread decides, so that there is one order.
#include "kernels/cuda/cuda_table.hpp"
#include "kernels/step_arithmetic.hpp"
#include "tessera/device/cuda_launch.cuh"

namespace tessera::kernels::cuda {
namespace {

using tessera::cuda::launch;

constexpr unsigned most_loaders = 256;  // threads that bring partial sums near the one that adds

// In (unit, rank) order; partial sums stand in (rank, unit) order.
__global__ void decide(StepScalars* scalars, const NormPartials partials, const StepSettings settings) {
  __shared__ double near[most_loaders];
  const std::size_t loaders = blockDim.x;
  const std::size_t count = partials.units * partials.ranks;
  double sum = 0.0;
  for (std::size_t first = 0; first < count; first += loaders) {
    const std::size_t i = first + threadIdx.x;
    if (i < count) near[threadIdx.x] = partials.values[i % partials.ranks * partials.units + i / partials.ranks];
    __syncthreads();
    if (threadIdx.x == 0) {
      const std::size_t here = count - first < loaders ? count - first : loaders;
      for (std::size_t k = 0; k < here; ++k) sum += near[k];
    }
    __syncthreads();
  }
  if (threadIdx.x == 0) set_step(*scalars, sqrt(sum), settings);
}

__global__ void store(StepScalars* scalars, const StepScalars values) { *scalars = values; }

}  // namespace

void begin_update(void* native, StepScalars* scalars, const NormPartials& partials, const StepSettings& settings) {
  const std::size_t count = partials.units * partials.ranks;
  const unsigned loaders = count < most_loaders ? (static_cast<unsigned>(count) + 31) / 32 * 32 + (count == 0 ? 32 : 0)
                                                : most_loaders;
  launch(native, {.threads = loaders}, decide, scalars, partials, settings);
}

void set_scalars(void* native, StepScalars* scalars, const StepScalars& values) {
  launch(native, {.threads = 1}, store, scalars, values);
}

}  // namespace tessera::kernels::cuda
