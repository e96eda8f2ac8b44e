// Where what the ranks of a job say comes together: who agrees, who is late, who has left and whose failure came first;
// and their blobs, until all are taken. One ledger under one mutex: a failure and its consequences for every channel
// are one atomic step, so which error a rank sees is never a race. Ranks that are threads wait here (ThreadControl);
// those that are processes have one at their rendezvous (rendezvous/server.hpp).
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <optional>

#include "comm/control/control.hpp"
#include "comm/patience.hpp"

namespace tessera::comm {

class ControlRoom {
 public:
  // remark: what the texts of verdicts end with.
  ControlRoom(int size, std::chrono::milliseconds timeout, std::function<std::string()> remark = {});

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

  // ---- under its mutex ----

  using Lock = std::unique_lock<std::mutex>;
  Lock lock() const { return Lock(mutex_); }
  void abort(const Lock&, int rank, std::string_view cause, std::exception_ptr exception,
             const Position& verdict = {}) noexcept;
  // A channel more, as Ledger::open().
  std::size_t open(const Lock&, std::string name, std::vector<int> members);
  // Until the next call.
  std::string_view encoded(const Lock&, const Signature& signature);

  // These are Control's functions of these names, of an encoded signature. blob: null where none are wanted; on channel
  // 0 it begins with the rank's Opening, and the channels of all groups are opened with the last one. Throws DataError
  // for what no rank says.
  Position announce(const Lock&, int rank, std::size_t channel, std::string_view code,
                    const std::string_view* blob = nullptr);
  void await_agreement(Lock& lock, int rank, const Position& position, const Signature& signature);
  void late(const Lock&, int rank, const Position& position, std::string_view code, Ledger::WaitFor waiting_for);

  const Ledger& ledger(const Lock&) const { return ledger_; }
  // The blobs of a position that is agreed, by place, for one of so many who take them; none where none were wanted.
  std::optional<std::vector<std::string>> take_blobs(const Lock&, const Position& position, std::size_t takers);
  // Woken when something is agreed on the channel, and by a failure.
  std::condition_variable& changed(std::size_t channel) { return changed_[channel]; }

  // The rank takes part in nothing more. Once is enough.
  void leave(const Lock&, int rank);
  bool all_left(const Lock&) const { return left_ == size_; }
  // Until all have left, or the job has failed.
  void wait_for_leavers(Lock& lock);

 private:
  struct Mail {
    std::vector<std::string> blobs;
    std::size_t taken = 0;
  };

  void keep_blob(int rank, std::size_t channel, const std::string_view* blob);
  void open_channels(const Lock&);
  void conclude(const Lock&, int rank, const std::optional<Verdict>& verdict) noexcept;

  const int size_;
  const std::chrono::milliseconds timeout_;
  const std::function<std::string()> remark_;
  std::vector<SignOfLife> lives_;  // by rank
  mutable std::mutex mutex_;
  std::deque<std::condition_variable> changed_;  // by channel
  std::condition_variable left_changed_;
  Ledger ledger_;
  std::map<Position, Mail> mail_;
  std::vector<Opening> openings_;  // by rank, of the communicator that is being made
  std::string code_;
  int left_ = 0;
  FirstFailure failure_;
};

// The control channel of ranks that are threads.
class ThreadControl : public Control {
 public:
  ThreadControl(ControlRoom& room, int rank) : room_(room), rank_(rank) {}

  int rank() const final { return rank_; }
  int size() const final { return room_.size(); }
  std::chrono::milliseconds timeout() const final { return room_.timeout(); }

  Position announce(std::size_t channel, const Signature& signature) final {
    const auto lock = room_.lock();
    return room_.announce(lock, rank_, channel, room_.encoded(lock, signature));
  }
  void await_agreement(const Position& position, const Signature& signature) final {
    auto lock = room_.lock();
    room_.await_agreement(lock, rank_, position, signature);
  }
  std::vector<std::string> exchange(std::size_t channel, const Signature& signature, std::string_view blob) final {
    auto lock = room_.lock();
    const Position position = room_.announce(lock, rank_, channel, room_.encoded(lock, signature), &blob);
    room_.await_agreement(lock, rank_, position, signature);
    return room_.take_blobs(lock, position, room_.ledger(lock).members(channel).size()).value();
  }
  void late(const Position& position, const Signature& signature) noexcept final {
    const auto lock = room_.lock();
    room_.late(lock, rank_, position, room_.encoded(lock, signature), Ledger::WaitFor::end);
  }

  void abort(std::string_view cause, std::exception_ptr exception) noexcept final {
    room_.abort(rank_, cause, std::move(exception));
  }
  const JobFailure* failure() const noexcept final { return room_.failure(); }
  void note_progress() noexcept final { room_.life(rank_).note(SignOfLife::Clock::now()); }
  void leave() noexcept override {
    auto lock = room_.lock();
    room_.leave(lock, rank_);
    room_.wait_for_leavers(lock);
  }

 private:
  ControlRoom& room_;
  int rank_;
};

}  // namespace tessera::comm
