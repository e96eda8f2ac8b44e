// The job of ranks that are threads, and the meeting points of their communicators. All state is under the job's mutex.
#include "comm/local/local_group.hpp"

#include <algorithm>
#include <utility>

#include "comm/collective_errors.hpp"
#include "comm/job_failure.hpp"
#include "tessera/base/error.hpp"

namespace tessera::comm {

// ---- the job ----

LocalJob::LocalJob(int size, std::chrono::milliseconds timeout)
    : size_(size),
      timeout_(timeout),
      lives_(static_cast<std::size_t>(size)),
      left_(static_cast<std::size_t>(size)),
      creation_(std::make_unique<LocalGroup>(*this, "creation", everybody(0, size).ranks)) {}

LocalJob::~LocalJob() = default;

void LocalJob::abort(int rank, std::string_view cause, std::exception_ptr exception) noexcept {
  const Lock lock(mutex_);
  abort(lock, rank, cause, std::move(exception));
}

void LocalJob::abort(const Lock&, int rank, std::string_view cause, std::exception_ptr exception) noexcept {
  if (failure_.record(rank, cause, std::move(exception))) wake_all();
}

void LocalJob::leave(int rank) noexcept {
  const Lock lock(mutex_);
  left_[static_cast<std::size_t>(rank)] = true;
  anyone_left_ = true;
  wake_all();
}

LocalGroup& LocalJob::group(std::size_t index, const std::string& name, const std::vector<int>& ranks) {
  const Lock lock(mutex_);
  auto& group = groups_[{index, ranks.front()}];
  if (!group) group = std::make_unique<LocalGroup>(*this, name, ranks);
  return *group;
}

void LocalJob::wake_all() noexcept {
  creation_->wake();
  for (const auto& [key, group] : groups_) group->wake();
}

// ---- a communicator's meeting point ----

LocalGroup::LocalGroup(LocalJob& job, std::string name, const std::vector<int>& ranks)
    : job_(job), name_(std::move(name)) {
  for (const int rank : ranks) slots_.push_back({.rank = rank});
  for (Slot& each : slots_) each.scratch.resize(slots_.size());
}

void LocalGroup::enter(int place, const LocalPost& post) {
  Lock lock(job_.mutex());
  if (job_.failure() != nullptr) leave_aborted(lock);
  claim(lock, place);
  slot(place).post = post;
  ++slot(place).posts;
  std::uint64_t phase = 0;
  if (arrive(phase)) {
    check_agreement(lock, place);
    open_next_phase();
  } else {
    wait_for_posts(lock, place, phase);
  }
  start_moving(lock);
}

void LocalGroup::regroup(int) {
  Lock lock(job_.mutex());
  stop_moving();
  pass(lock);
  start_moving(lock);
}

void LocalGroup::finish(int place) {
  Lock lock(job_.mutex());
  stop_moving();
  pass(lock);
  slot(place).busy = false;
}

void LocalGroup::fail(int place, const std::exception_ptr& exception) {
  Lock lock(job_.mutex());
  job_.abort(lock, slot(place).rank, text_of(exception), exception);
  stop_moving();
  wait_for_movers(lock);
}

// Whether this rank is the last to come to the end of the present phase, whose number is stored.
bool LocalGroup::arrive(std::uint64_t& phase) {
  phase = phase_;
  return ++arrived_ == size();
}

void LocalGroup::open_next_phase() {
  arrived_ = 0;
  ++phase_;
  wake();
}

// The checks stand in this order so that all ranks of a failed collective get its verdict, not the abort it caused.
void LocalGroup::wait_for_posts(Lock& lock, int place, std::uint64_t phase) {
  Patience patience(job_.timeout());
  while (phase_ == phase) {
    if (verdict_) throw CommunicationError(*verdict_);
    if (job_.failure() != nullptr) leave_aborted(lock);
    if (job_.anyone_left(lock)) check_left(lock, place);
    const auto next_look = patience.look();
    check_late(lock, place, patience);
    if (changed_.wait_until(lock, next_look) == std::cv_status::timeout) follow_life(place);
  }
}

// No deadline here and below: the peers compute and wait for nobody, and must be done before this rank may leave.
void LocalGroup::wait_for_movers(Lock& lock) {
  changed_.wait(lock, [this] { return moving_ == 0; });
}

void LocalGroup::pass(Lock& lock) {
  std::uint64_t phase = 0;
  if (arrive(phase)) return open_next_phase();
  while (phase_ == phase) {
    if (job_.failure() != nullptr) leave_aborted(lock);
    changed_.wait(lock);
  }
}

void LocalGroup::start_moving(Lock& lock) {
  if (job_.failure() != nullptr) leave_aborted(lock);
  ++moving_;
}

void LocalGroup::stop_moving() {
  if (--moving_ == 0 && job_.failure() != nullptr) wake();
}

void LocalGroup::claim(const Lock& lock, int place) {
  if (!std::exchange(slot(place).busy, true)) return;
  const UsageError error(two_streams_text(slot(place).rank, name_));
  job_.abort(lock, slot(place).rank, error.what(), std::make_exception_ptr(error));
  throw error;
}

// Waiting for a rank whose body has returned would only end with the deadline.
void LocalGroup::check_left(const Lock& lock, int place) {
  std::vector<int> left = missing_ranks(place);
  std::erase_if(left, [&](int missing) { return !job_.has_left(lock, missing); });
  if (!left.empty()) conclude(lock, place, left_text(standstill(place, waiting_ranks(place), left)));
}

void LocalGroup::check_agreement(const Lock& lock, int place) {
  const auto agrees = [&](const Slot& other) { return other.post.signature == slot(place).post.signature; };
  if (std::all_of(slots_.begin(), slots_.end(), agrees)) return;
  std::vector<int> ranks;
  std::vector<Signature> signatures;
  for (const Slot* each : by_rank()) {
    ranks.push_back(each->rank);
    signatures.push_back(each->post.signature);
  }
  conclude(lock, place, disagreement_text(name_, signatures, ranks));
}

// A rank that waits is as much alive as the one of whom it has heard least.
void LocalGroup::follow_life(int place) {
  auto least = Patience::Clock::time_point::max();
  for (int other = 0; other < size(); ++other) {
    if (slot(other).posts < slot(place).posts) least = std::min(least, job_.life(slot(other).rank).last());
  }
  if (least != Patience::Clock::time_point::max()) job_.life(slot(place).rank).note(least);
}

void LocalGroup::check_late(const Lock& lock, int place, const Patience& patience) {
  if (!patience.is_over()) return;
  std::vector<int> late = missing_ranks(place);
  std::erase_if(late, [&](int missing) { return !patience.is_over(job_.life(missing).last()); });
  if (!late.empty()) conclude(lock, place, timeout_text(standstill(place, waiting_ranks(place), late), job_.timeout()));
}

// All ranks in the present collective get `text`, all other waits of the job an AbortedError with it as cause.
void LocalGroup::conclude(const Lock& lock, int place, const std::string& text) {
  verdict_ = text;
  job_.abort(lock, slot(place).rank, text, std::make_exception_ptr(CommunicationError(text)));
  throw CommunicationError(text);
}

void LocalGroup::leave_aborted(Lock& lock) {
  wait_for_movers(lock);
  throw_aborted(*job_.failure());
}

Standstill LocalGroup::standstill(int place, std::span<const int> waiting, std::span<const int> missing) const {
  return {.communicator = name_, .signature = slot(place).post.signature, .waiting = waiting, .missing = missing};
}

// The ranks that have posted the collective that this one is in, and those that have not.
std::vector<int> LocalGroup::waiting_ranks(int place) const {
  return ranks_where([&](const Slot& other) { return other.posts >= slot(place).posts; });
}

std::vector<int> LocalGroup::missing_ranks(int place) const {
  return ranks_where([&](const Slot& other) { return other.posts < slot(place).posts; });
}

template <typename Condition>
std::vector<int> LocalGroup::ranks_where(Condition&& condition) const {
  std::vector<int> ranks;
  for (const Slot* each : by_rank()) {
    if (condition(*each)) ranks.push_back(each->rank);
  }
  return ranks;
}

std::vector<const LocalGroup::Slot*> LocalGroup::by_rank() const {
  std::vector<const Slot*> slots;
  for (const Slot& each : slots_) slots.push_back(&each);
  std::sort(slots.begin(), slots.end(), [](const Slot* a, const Slot* b) { return a->rank < b->rank; });
  return slots;
}

}  // namespace tessera::comm
