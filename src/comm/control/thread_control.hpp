// The control channel of ranks that are threads: one ledger under one mutex.
#pragma once

#include <atomic>
#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>

#include "comm/control/control.hpp"

namespace tessera::comm {

// What the ranks share. Outlives their ThreadControls.
class ThreadControlRoom {
 public:
  ThreadControlRoom(int size, std::chrono::milliseconds timeout) : size_(size), timeout_(timeout), ledger_(size) {}

  int size() const { return size_; }
  std::chrono::milliseconds timeout() const { return timeout_; }
  const JobFailure* failure() const noexcept { return failed_.load(std::memory_order_acquire) ? &failure_ : nullptr; }
  void abort(int rank, std::string_view cause, std::exception_ptr exception) noexcept;
  // The rank announces nothing more.
  void note_left(int rank) noexcept;

 private:
  friend class ThreadControl;
  using Lock = std::unique_lock<std::mutex>;
  struct Mail {  // of an exchange that not all ranks have taken yet
    std::vector<std::string> blobs;
    int takers = 0;
  };

  void conclude(int rank, const std::optional<Verdict>& verdict) noexcept;
  void abort(const Lock& lock, int rank, std::string_view cause, std::exception_ptr exception) noexcept;
  void await(Lock& lock, int rank, const Position& position, const Signature& signature);
  [[noreturn]] void fail_at(const Position& position) const;

  const int size_;
  const std::chrono::milliseconds timeout_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  Ledger ledger_;
  std::map<std::pair<std::size_t, std::uint64_t>, Mail> mail_;
  std::string code_;  // of the present announcement
  std::optional<Position> verdict_;
  int left_ = 0;
  JobFailure failure_;
  std::atomic<bool> failed_ = false;
};

class ThreadControl final : public Control {
 public:
  ThreadControl(ThreadControlRoom& room, int rank) : room_(room), rank_(rank) {}

  int rank() const final { return rank_; }
  int size() const final { return room_.size(); }
  std::chrono::milliseconds timeout() const final { return room_.timeout(); }

  Opened open(const std::string& name, std::string_view blob) final;
  Position announce(std::size_t channel, const Signature& signature) final;
  void await_agreement(const Position& position, const Signature& signature) final;
  std::vector<std::string> exchange(std::size_t channel, const Signature& signature, std::string_view blob) final;
  void late(const Position& position, const Signature& signature) noexcept final;

  void abort(std::string_view cause, std::exception_ptr exception) noexcept final {
    room_.abort(rank_, cause, std::move(exception));
  }
  const JobFailure* failure() const noexcept final { return room_.failure(); }
  [[noreturn]] void fail_at(const Position& position) const final { room_.fail_at(position); }
  void leave() noexcept final;

 private:
  using Lock = ThreadControlRoom::Lock;
  Position announce(const Lock& lock, std::size_t channel, const Signature& signature);

  ThreadControlRoom& room_;
  int rank_;
  std::size_t opened_ = 0;
};

}  // namespace tessera::comm
