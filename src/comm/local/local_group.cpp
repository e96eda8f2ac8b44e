// Posts are agreed as announcements are; what follows counts who still moves.
#include "comm/local/local_group.hpp"

#include <utility>

#include "comm/collective_errors.hpp"
#include "comm/job_failure.hpp"
#include "tessera/base/error.hpp"

namespace tessera::comm {

LocalGroup::LocalGroup(ThreadControlRoom& room, std::size_t channel, std::string name, const std::vector<int>& ranks)
    : room_(room), channel_(channel), name_(std::move(name)) {
  for (const int rank : ranks) slots_.push_back({.rank = rank});
  for (Slot& each : slots_) each.scratch.resize(slots_.size());
}

void LocalGroup::enter(int place, const LocalPost& post) {
  Lock lock = room_.lock();
  if (room_.failure() != nullptr) leave_aborted(lock);
  claim(lock, place);
  slot(place).post = post;
  const int rank = slot(place).rank;
  const Position position = room_.announce(lock, rank, channel_, post.signature);
  room_.await_agreement(lock, rank, position, post.signature);
  start_moving(lock);
}

void LocalGroup::regroup(int) {
  Lock lock = room_.lock();
  stop_moving();
  pass(lock);
  start_moving(lock);
}

void LocalGroup::finish(int place) {
  Lock lock = room_.lock();
  stop_moving();
  pass(lock);
  slot(place).busy = false;
}

void LocalGroup::fail(int place, const std::exception_ptr& exception) {
  Lock lock = room_.lock();
  room_.abort(lock, slot(place).rank, text_of(exception), exception);
  stop_moving();
  wait_for_movers(lock);
}

void LocalGroup::claim(const Lock& lock, int place) {
  if (!std::exchange(slot(place).busy, true)) return;
  const UsageError error(two_streams_text(slot(place).rank, name_));
  room_.abort(lock, slot(place).rank, error.what(), std::make_exception_ptr(error));
  throw error;
}

// No deadline here and below: the peers compute and wait for nobody, and must be done before this rank may leave.
void LocalGroup::pass(Lock& lock) {
  const std::uint64_t before = passed_;
  if (++passing_ == size()) {
    passing_ = 0;
    ++passed_;
    return changed().notify_all();
  }
  while (passed_ == before) {
    if (room_.failure() != nullptr) leave_aborted(lock);
    changed().wait(lock);
  }
}

void LocalGroup::start_moving(Lock& lock) {
  if (room_.failure() != nullptr) leave_aborted(lock);
  ++moving_;
}

void LocalGroup::stop_moving() {
  if (--moving_ == 0 && room_.failure() != nullptr) changed().notify_all();
}

void LocalGroup::wait_for_movers(Lock& lock) {
  changed().wait(lock, [this] { return moving_ == 0; });
}

void LocalGroup::leave_aborted(Lock& lock) {
  wait_for_movers(lock);
  throw_aborted(*room_.failure());
}

}  // namespace tessera::comm
