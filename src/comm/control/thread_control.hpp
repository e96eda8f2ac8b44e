// The control channel of ranks that are threads: one ledger under one mutex. A failure and its consequences for every
// channel are thus one atomic step, and which error a rank sees is never a race.
#pragma once

#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <optional>

#include "comm/control/control.hpp"
#include "comm/patience.hpp"

namespace tessera::comm {

// What the ranks share. Outlives their ThreadControls.
class ThreadControlRoom {
 public:
  ThreadControlRoom(int size, std::chrono::milliseconds timeout)
      : size_(size), timeout_(timeout), lives_(static_cast<std::size_t>(size)), changed_(1), ledger_(size) {}

  int size() const { return size_; }
  std::chrono::milliseconds timeout() const { return timeout_; }
  // Null while nothing failed; constant afterwards. Needs no lock.
  const JobFailure* failure() const noexcept { return failure_.get(); }
  // The first failure wins; every rank that waits is woken.
  void abort(int rank, std::string_view cause, std::exception_ptr exception) noexcept {
    abort(lock(), rank, cause, std::move(exception));
  }
  // Signs of life, by rank.
  SignOfLife& life(int rank) { return lives_[static_cast<std::size_t>(rank)]; }

  // ---- under its mutex: for ThreadControl, and for who keeps a state of its own beside the ledger's ----

  using Lock = std::unique_lock<std::mutex>;
  Lock lock() const { return Lock(mutex_); }
  void abort(const Lock&, int rank, std::string_view cause, std::exception_ptr exception) noexcept;
  // A channel more, as Ledger::open().
  std::size_t open(const Lock&, const std::string& name, const std::vector<int>& members);
  // As Control's functions of these names.
  Position announce(const Lock&, int rank, std::size_t channel, const Signature& signature);
  void await_agreement(Lock& lock, int rank, const Position& position, const Signature& signature);
  // Woken when something is agreed on the channel, and by a failure.
  std::condition_variable& changed(std::size_t channel) { return changed_[channel]; }

 private:
  friend class ThreadControl;
  struct Mail {  // of an exchange that not all ranks have taken yet
    std::vector<std::string> blobs;
    std::size_t takers = 0;
  };

  void note_left(const Lock&, int rank) noexcept;
  void conclude(int rank, const std::optional<Verdict>& verdict) noexcept;
  void wake_all() noexcept;

  const int size_;
  const std::chrono::milliseconds timeout_;
  std::vector<SignOfLife> lives_;  // by rank
  mutable std::mutex mutex_;
  std::deque<std::condition_variable> changed_;  // by channel
  std::condition_variable all_left_;
  Ledger ledger_;
  std::map<std::pair<std::size_t, std::uint64_t>, Mail> mail_;
  std::string code_;  // of the present announcement
  int left_ = 0;
  FirstFailure failure_;
};

class ThreadControl final : public Control {
 public:
  ThreadControl(ThreadControlRoom& room, int rank) : room_(room), rank_(rank) {}

  int rank() const final { return rank_; }
  int size() const final { return room_.size(); }
  std::chrono::milliseconds timeout() const final { return room_.timeout(); }

  Opened open(const std::string& name, const std::optional<Group>& group, std::string_view blob) final;
  Position announce(std::size_t channel, const Signature& signature) final;
  void await_agreement(const Position& position, const Signature& signature) final;
  std::vector<std::string> exchange(std::size_t channel, const Signature& signature, std::string_view blob) final;
  void late(const Position& position, const Signature& signature) noexcept final;

  void abort(std::string_view cause, std::exception_ptr exception) noexcept final {
    room_.abort(rank_, cause, std::move(exception));
  }
  const JobFailure* failure() const noexcept final { return room_.failure(); }
  void note_progress() noexcept final { room_.life(rank_).note(SignOfLife::Clock::now()); }
  void leave() noexcept final;

 private:
  using Lock = ThreadControlRoom::Lock;

  ThreadControlRoom& room_;
  int rank_;
  std::size_t opened_ = 0;
};

}  // namespace tessera::comm
