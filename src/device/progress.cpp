// Waiting for a position in a stream's order.
#include "device/progress.hpp"

namespace tessera::device {

void Progress::advance() {
  const std::lock_guard lock(mutex_);
  const std::uint64_t now = completed() + 1;
  completed_.store(now, std::memory_order_release);
  for (Waiter* waiter = waiters_; waiter != nullptr; waiter = waiter->next) {
    if (waiter->position <= now) waiter->reached.notify_one();
  }
}

bool Progress::wait_for(std::uint64_t position, Deadline deadline) {
  if (completed() >= position) return true;
  std::unique_lock lock(mutex_);
  Waiter waiter{.position = position, .next = waiters_};
  waiters_ = &waiter;
  const auto reached = [&] { return completed() >= position; };
  if (deadline) {
    waiter.reached.wait_until(lock, *deadline, reached);
  } else {
    waiter.reached.wait(lock, reached);
  }
  remove(waiter);
  return reached();
}

void Progress::remove(Waiter& waiter) {
  Waiter** link = &waiters_;
  while (*link != &waiter) link = &(*link)->next;
  *link = waiter.next;
}

}  // namespace tessera::device
