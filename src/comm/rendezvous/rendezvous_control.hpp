// The control channel of ranks that are processes: a connection to rank 0's server, and a thread that listens to it.
#pragma once

#include <atomic>
#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "comm/control/control.hpp"
#include "comm/rendezvous/join.hpp"
#include "comm/rendezvous/wire.hpp"

namespace tessera::comm {

class FieldReader;

class RendezvousControl final : public Control {
 public:
  // Joins: blocks, and throws as join() does.
  RendezvousControl(const JoinOptions& options, std::chrono::milliseconds timeout);
  // Ends the connection; without leave() before, the other ranks hear that this one has crashed.
  ~RendezvousControl() final;

  int rank() const final { return options_.rank; }
  int size() const final { return options_.ranks; }
  std::chrono::milliseconds timeout() const final { return timeout_; }

  Opened open(const std::string& name, const std::optional<Group>& group, std::string_view blob) final;
  Position announce(std::size_t channel, const Signature& signature) final;
  void await_agreement(const Position& position, const Signature& signature) final;
  std::vector<std::string> exchange(std::size_t channel, const Signature& signature, std::string_view blob) final;
  void late(const Position& position, const Signature& signature) noexcept final;

  void abort(std::string_view cause, std::exception_ptr exception) noexcept final;
  const JobFailure* failure() const noexcept final { return failure_.get(); }
  void note_progress() noexcept final;
  void leave() noexcept final;
  void say_reported() noexcept final;
  bool wait_for_report() noexcept final;

 private:
  using Lock = std::unique_lock<std::mutex>;
  using Place = std::pair<std::size_t, std::uint64_t>;

  void work() noexcept;
  bool exchange_bytes(int milliseconds);
  void hear(const Frame& frame);
  void hear_failure(std::string_view payload);
  void hear_blobs(const Position& position, FieldReader& reader);
  void lose_connection() noexcept;
  void fail(const Lock& lock, int rank, std::string_view cause, const Position& verdict = {}) noexcept;
  void send(const Lock& lock, FrameKind kind, std::string_view payload);
  Position announce(const Lock& lock, std::size_t channel, const Signature& signature, const std::string_view* blob);
  void await(Lock& lock, const Position& position, const Signature& signature);
  void send_lateness(const Lock& lock, const Position& position, const Signature& signature, bool on_host);
  std::uint64_t& count_at(std::vector<std::uint64_t>& counts, std::size_t channel);

  const JoinOptions options_;
  const std::chrono::milliseconds timeout_;
  Connection connection_;  // the thread's own
  Wake wake_;
  std::atomic<bool> ending_ = false;

  mutable std::mutex mutex_;  // of all below
  std::condition_variable changed_;
  std::string outgoing_;  // frames that the thread has not taken yet
  std::string code_;
  std::string payload_;
  std::vector<std::uint64_t> announced_;  // by channel
  std::vector<std::uint64_t> agreed_;
  std::vector<std::uint64_t> members_;  // how many, by channel
  std::map<Place, std::vector<std::string>> gathered_;
  std::size_t opened_ = 0;
  bool all_left_ = false;
  bool reported_ = false;
  std::uint64_t alive_answers_ = 0;  // to the question whether those for whom this rank waits stand still
  std::chrono::steady_clock::time_point last_progress_{};  // that was told
  std::exception_ptr own_exception_;                       // of the cause that this rank told
  FirstFailure failure_;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace tessera::comm
