// Turns, one after the other.
#include "comm/nccl/launch_order.hpp"

#include <fmt/format.h>

#include <chrono>

#include "tessera/base/error.hpp"

namespace tessera::comm {
namespace {

constexpr std::chrono::milliseconds poll{5};  // of the job's failure, while waiting

}  // namespace

LaunchOrder::LaunchOrder(Control& control, Device device, bool by_events)
    : control_(control), by_events_(by_events), last_launch_(device) {}

std::uint64_t LaunchOrder::take() {
  const std::lock_guard lock(mutex_);
  return ++taken_;
}

void LaunchOrder::await(std::uint64_t place) {
  const auto deadline = std::chrono::steady_clock::now() + control_.timeout();
  std::unique_lock lock(mutex_);
  while (next_ != place) {
    if (control_.failure() != nullptr) control_.fail_at({});
    if (std::chrono::steady_clock::now() > deadline) {
      const std::string text = fmt::format(
          "rank {} waited up to {:.3g} s to launch collective {} of its job, because an earlier one was never "
          "launched: did "
          "its stream fail?",
          control_.rank(), std::chrono::duration<double>(control_.timeout()).count(), place);
      control_.abort(text, std::make_exception_ptr(CommunicationError(text)));
      throw CommunicationError(text);
    }
    changed_.wait_for(lock, poll);
  }
}

LaunchOrder::Turn::Turn(LaunchOrder& order, std::uint64_t place, device::CudaQueue& queue)
    : order_(order), queue_(queue) {
  order.await(place);
  if (order.by_events_ && order.last_queue_ != nullptr && order.last_queue_ != &queue) queue.wait(order.last_launch_);
}

LaunchOrder::Turn::~Turn() {
  try {
    if (order_.by_events_) queue_.record(order_.last_launch_);
  } catch (const Error&) {
    // The device has failed, which whoever synchronises is told.
  }
  order_.last_queue_ = &queue_;
  const std::lock_guard lock(order_.mutex_);
  ++order_.next_;
  order_.changed_.notify_all();
}

}  // namespace tessera::comm
