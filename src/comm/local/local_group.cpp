// Posts are agreed as announcements are; what follows counts who still moves.
#include "comm/local/local_group.hpp"

#include <utility>

#include "comm/job_failure.hpp"

namespace tessera::comm {

LocalGroup::LocalGroup(ControlRoom& room, std::size_t channel, std::string name, const std::vector<int>& ranks)
    : room_(room), channel_(channel), name_(std::move(name)), slots_(ranks.size()) {
  for (std::size_t place = 0; place < ranks.size(); ++place) {
    slots_[place].rank = ranks[place];
    slots_[place].scratch.resize(ranks.size());
  }
}

void LocalGroup::enter(int place, const LocalPost& post) {
  Lock lock = room_.lock();
  if (room_.failure() != nullptr) leave_aborted(lock);
  slot(place).post = post;
  const int rank = slot(place).rank;
  const Position position = room_.announce(lock, rank, channel_, room_.encoded(lock, post.signature));
  room_.await_agreement(lock, rank, position, post.signature);
  start_moving(lock, place);
}

void LocalGroup::regroup(int place) {
  Lock lock = room_.lock();
  stop_moving(place);
  pass(lock);
  start_moving(lock, place);
}

void LocalGroup::finish(int place) {
  Lock lock = room_.lock();
  stop_moving(place);
  pass(lock);
}

void LocalGroup::fail(int place, const std::exception_ptr& exception) {
  Lock lock = room_.lock();
  room_.abort(lock, slot(place).rank, text_of(exception), exception);
  stop_moving(place);
  wait_for_movers(lock);
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

void LocalGroup::start_moving(Lock& lock, int place) {
  if (room_.failure() != nullptr) leave_aborted(lock);
  slot(place).moves = true;
  ++moving_;
}

void LocalGroup::stop_moving(int place) {
  if (!std::exchange(slot(place).moves, false)) return;
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
