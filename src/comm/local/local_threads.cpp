// Rank r has CUDA device r modulo their number, or the CPU.
#include "comm/local/local_threads.hpp"

#include <algorithm>
#include <memory>

#include "comm/launch_options.hpp"
#include "comm/local/local_backend.hpp"
#include "device/cuda/cuda_queue.hpp"
#include "tessera/device/cuda.hpp"

namespace tessera::comm {

LocalThreads::LocalThreads(const LaunchOptions& options)
    : job_(thread_ranks(options), options.timeout),
      kind_(resolve(options.device)),
      threads_(threads_per_rank(options)) {
  if (kind_ == DeviceKind::cuda) device::share_memory(std::min(job_.size(), cuda_device_count()));
}

void LocalThreads::run_rank(int rank, RankLog& log, const std::function<void(World&)>& body) {
  const Device device = kind_ == DeviceKind::cpu ? Device::cpu() : Device::cuda(rank % cuda_device_count());
  World world(std::make_unique<LocalBackend>(job_, rank, LocalPlace{.device = device, .threads = threads_}, log));
  body(world);
}

}  // namespace tessera::comm
