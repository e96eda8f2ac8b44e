// The one order in which a rank launches its collectives on all communicators: that in which its host thread called
// them, although each stream issues from a thread of its own. On all ranks it is the plan's, so two communicators never
// wait for each other crosswise.
//
// Thread safety: all of it.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>

#include "comm/control/control.hpp"
#include "device/cuda/cuda_queue.hpp"

namespace tessera::comm {

class LaunchOrder {
 public:
  // by_events: each launch also waits, on the device, for the one before it on another stream; for an NCCL that does
  // not keep the order itself.
  LaunchOrder(Control& control, Device device, bool by_events);

  // The place of a call, in the order of calls.
  std::uint64_t take();

  // While it lives, it is that place's turn. Waits for its turn; throws as Control::fail_at() when the job fails, or
  // fails it when an earlier call is not launched within the job's timeout.
  class Turn {
   public:
    Turn(LaunchOrder& order, std::uint64_t place, device::CudaQueue& queue);
    ~Turn();
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

   private:
    LaunchOrder& order_;
    device::CudaQueue& queue_;
  };

 private:
  void await(std::uint64_t place);

  Control& control_;
  const bool by_events_;
  device::CudaMark last_launch_;
  device::CudaQueue* last_queue_ = nullptr;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t taken_ = 0;
  std::uint64_t next_ = 1;
};

}  // namespace tessera::comm
