// One rank of several threads over NCCL.
#include "comm/nccl/nccl_threads.hpp"

#include <fmt/format.h>

#include <cstdio>

#include "comm/launch_options.hpp"
#include "comm/nccl/nccl_backend.hpp"
#include "comm/nccl/nccl_start.hpp"
#include "comm/rank_error.hpp"
#include "tessera/base/error.hpp"
#include "tessera/device/cuda.hpp"

namespace tessera::comm {

NcclThreads::NcclThreads(const LaunchOptions& options)
    : options_(options), room_(thread_ranks(options), options.timeout), library_(open_chosen_nccl()) {
  const int devices = cuda_device_count();
  if (room_.size() <= devices || library_->shares_devices()) return;
  throw UnavailableError(
      fmt::format("--backend nccl: {} ranks for {} CUDA device{}, and {} gives each rank one of its own (2.30 and "
                  "later share them, "
                  "with NCCL_MULTI_RANK_GPU_ENABLE=1 in the environment); use --ranks {}, or leave --backend out",
                  room_.size(), devices, devices == 1 ? "" : "s", library_->name(), devices));
}

void NcclThreads::run_rank(int rank, RankLog& log, const std::function<void(World&)>& body) {
  ThreadControl control(room_, rank);
  NcclJob job(*library_, control, Device::cuda(rank % cuda_device_count()), nccl_options(options_));
  if (rank == 0) {
    fmt::print(stderr, "tessera: {} rank{}, threads of one process, on CUDA devices; {}\n", size(),
               size() == 1 ? "" : "s", job.in_words());
  }
  std::exception_ptr thrown;
  try {
    World world(std::make_unique<NcclBackend>(job, threads_per_rank(options_), log));
    body(world);
  } catch (...) {
    thrown = std::current_exception();
    control.abort(text_of(thrown), thrown);
  }
  control.leave();
  if (thrown) std::rethrow_exception(thrown);
}

}  // namespace tessera::comm
