// A rank's end of the rendezvous after it was admitted.
#include "comm/rendezvous/rendezvous_control.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <pthread.h>

#include <atomic>
#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "comm/patience.hpp"
#include "comm/rendezvous/wire.hpp"
#include "comm/signature.hpp"
#include "tessera/base/error.hpp"

namespace tessera::comm {
namespace {

using std::chrono::steady_clock;

constexpr std::chrono::seconds patience{5};  // with the server, beyond the job's own deadline
constexpr int longest_poll_ms = 1'000;

// Blobs of all ranks, and their lengths.
Bytes most_payload(int ranks) {
  return Bytes((Control::most_blob + sizeof(std::uint32_t)) * static_cast<std::uint64_t>(ranks) + (64 << 10));
}

class RendezvousControl final : public Control {
 public:
  RendezvousControl(const JoinOptions& options, std::chrono::milliseconds timeout)
      : options_(options), timeout_(timeout), connection_(join(options)) {
    connection_.admit(most_payload(options.ranks), timeout);
    thread_ = std::thread([this] { work(); });
  }
  ~RendezvousControl() final {
    ending_.store(true);
    wake_.wake();
    thread_.join();
  }

  int rank() const final { return options_.rank; }
  int size() const final { return options_.ranks; }
  std::chrono::milliseconds timeout() const final { return timeout_; }
  const JobFailure* failure() const noexcept final { return failure_.get(); }

  Position announce(std::size_t channel, const Signature& signature) final {
    const Lock lock(mutex_);
    return announce(lock, channel, signature, nullptr);
  }

  void await_agreement(const Position& position, const Signature& signature) final {
    Lock lock(mutex_);
    await(lock, position, signature);
  }

  std::vector<std::string> exchange(std::size_t channel, const Signature& signature, std::string_view blob) final {
    if (blob.size() > most_blob) {
      throw UsageError(fmt::format("rank {} gives {} bytes to {}, but a blob has {} at most", rank(), blob.size(),
                                   brief(signature), most_blob));
    }
    Lock lock(mutex_);
    const Position position = announce(lock, channel, signature, &blob);
    await(lock, position, signature);
    auto node = gathered_.extract(position);
    return std::move(node.mapped());
  }

  void late(const Position& position, const Signature& signature) noexcept final {
    const Lock lock(mutex_);
    send_lateness(lock, position, signature, false);
  }

  // The first cause is the one that came to the server first; without an answer this rank's own stands.
  void abort(std::string_view cause, std::exception_ptr exception) noexcept final {
    Lock lock(mutex_);
    if (failure() != nullptr) return;
    if (own_exception_ == nullptr) own_exception_ = std::move(exception);
    send(lock, FrameKind::failed, cause.substr(0, most_cause));
    if (changed_.wait_for(lock, last_words, [this] { return failure() != nullptr; })) return;
    fail(lock, rank(), cause);
  }

  void leave() noexcept final {
    Lock lock(mutex_);
    send(lock, FrameKind::left, "");
    Patience with_server(timeout_);  // who is there is asked by it
    while (!all_left_ && failure() == nullptr) {
      const auto next_look = with_server.look();
      if (with_server.is_over(heard_)) {
        give_up_server(lock, "at the end of the job");
      } else {
        changed_.wait_until(lock, next_look);
      }
    }
  }

  // To the server, which is asked by those who wait.
  void note_progress() noexcept final {
    const Lock lock(mutex_);
    if (steady_clock::now() - last_progress_ < look_interval(timeout_)) return;
    last_progress_ = steady_clock::now();
    send(lock, FrameKind::alive, "");
  }

  void say_reported() noexcept final {
    const Lock lock(mutex_);
    send(lock, FrameKind::reported, "");
  }

  bool wait_for_report() noexcept final {
    Lock lock(mutex_);
    return changed_.wait_for(lock, std::min<std::chrono::milliseconds>(timeout_, patience),
                             [this] { return reported_; });
  }

 private:
  using Lock = std::unique_lock<std::mutex>;

  // A message said before the end is there when it ends: a turn that waits for nothing sends it.
  void work() noexcept {
    ::pthread_setname_np(::pthread_self(), "control");
    try {
      for (bool ending = false, there = true; there && !ending;) {
        ending = ending_.load();
        there = exchange_bytes(ending ? 0 : longest_poll_ms);
      }
      connection_.flush_until(steady_clock::now() + last_words);
    } catch (const std::exception& error) {
      const Lock lock(mutex_);
      fail(lock, rank(), fmt::format("rank {} does not understand the rendezvous: {}", rank(), error.what()));
    }
    lose_connection();
  }

  // Whether the connection still stands. Waits so long for something to do.
  bool exchange_bytes(int milliseconds) {
    pollfd polled[] = {wake_.polled(), connection_.polled()};
    ::poll(polled, 2, milliseconds);
    wake_.clear();
    const bool there = connection_.receive();
    while (const std::optional<Frame> frame = connection_.next()) hear(*frame);
    {
      const Lock lock(mutex_);
      connection_.send_frames(outgoing_);
    }
    return there && connection_.flush();
  }

  void hear(const Frame& frame) {
    if (frame.kind == FrameKind::failed) return hear_failure(frame.payload);
    const Lock lock(mutex_);
    heard_ = steady_clock::now();
    FieldReader reader(frame.payload);
    if (frame.kind == FrameKind::left) {
      all_left_ = true;
    } else if (frame.kind == FrameKind::reported) {
      reported_ = true;
    } else if (frame.kind == FrameKind::alive) {
      ++alive_answers_;
    } else if (frame.kind == FrameKind::there) {
      send(lock, FrameKind::there, "");
    } else if (frame.kind == FrameKind::agreed || frame.kind == FrameKind::gathered) {
      const Position position = reader.position();
      while (!reader.at_end()) gathered_[position].emplace_back(reader.text());
      agreed_[position.channel] = position.number;
    } else {
      throw DataError(fmt::format("a message of kind {} is a rank's", static_cast<int>(frame.kind)));
    }
    changed_.notify_all();
  }

  void hear_failure(std::string_view payload) {
    FieldReader reader(payload);
    const auto rank = static_cast<int>(reader.number<std::uint32_t>());
    const Position verdict = reader.position();
    const Lock lock(mutex_);
    fail(lock, rank, reader.rest(), verdict);
  }

  // After the job's end, and after its failure, that is how it goes.
  void lose_connection() noexcept {
    const Lock lock(mutex_);
    if (ending_.load() || all_left_) return;
    fail(lock, 0,
         fmt::format(
             "rank {}'s connection to rank 0 at {} broke off: the process of rank 0 has ended, or its host cannot be "
             "reached",
             rank(), to_string(options_.endpoint)));
  }

  void fail(const Lock&, int rank, std::string_view cause, const Position& verdict = {}) noexcept {
    if (failure_.record(rank, cause, rank == options_.rank ? own_exception_ : nullptr, verdict)) changed_.notify_all();
  }

  void give_up_server(const Lock& lock, const std::string& where) noexcept {
    fail(lock, 0,
         fmt::format("rank {} waited up to {:.3g} s {} for rank 0's rendezvous at {}, which did not answer", rank(),
                     in_seconds(timeout_), where, to_string(options_.endpoint)));
  }

  void send(const Lock&, FrameKind kind, std::string_view payload) {
    append_frame(outgoing_, kind, payload);
    wake_.wake();
  }

  // Buffers keep their capacity, so a step that repeats itself needs no memory.
  Position announce(const Lock& lock, std::size_t channel, const Signature& signature, const std::string_view* blob) {
    if (failure() != nullptr) return {.channel = channel, .number = 0};
    encode(signature, code_);
    if (code_.size() > most_code) {
      throw UsageError(fmt::format("{} has {} segments, which take {} bytes to describe; one call takes up to {}",
                                   brief(signature), signature.segments(), code_.size(), most_code));
    }
    payload_.clear();
    FieldWriter writer(payload_);
    writer.number(static_cast<std::uint32_t>(channel));
    writer.number(static_cast<std::uint8_t>(blob != nullptr));
    writer.text(code_);
    if (blob != nullptr) writer.raw(*blob);
    send(lock, FrameKind::announce, payload_);
    return {.channel = channel, .number = ++announced_[channel]};
  }

  // The server names who is missing; if it does not even do that, it is the one. Time in which this process was stopped
  // does not count.
  void await(Lock& lock, const Position& position, const Signature& signature) {
    Patience wait(timeout_);
    std::optional<Patience> with_server;  // while a question is open
    std::uint64_t answers = 0;            // before it
    steady_clock::time_point next_question{};
    const auto agreed = [&] { return position.number > 0 && agreed_[position.channel] >= position.number; };
    while (!agreed()) {
      if (failure() != nullptr) fail_at(position);
      auto next_look = wait.look();
      if (wait.is_over()) next_look = with_server ? with_server->look() : next_question;
      if (with_server && answers != alive_answers_) {
        with_server.reset();
        next_question = steady_clock::now() + look_interval(timeout_);
      } else if (with_server && with_server->is_over()) {
        give_up_server(lock, "in " + brief(signature));
      } else if (!with_server && wait.is_over() && steady_clock::now() >= next_question) {
        send_lateness(lock, position, signature, true);
        answers = alive_answers_;
        with_server.emplace(patience);
      } else {
        changed_.wait_until(lock, next_look);
      }
    }
  }

  void send_lateness(const Lock& lock, const Position& position, const Signature& signature, bool on_host) {
    encode(signature, code_);
    payload_.clear();
    FieldWriter writer(payload_);
    writer.position(position);
    writer.number(static_cast<std::uint8_t>(on_host));
    writer.raw(code_);
    send(lock, FrameKind::late, payload_);
  }

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
  std::map<std::size_t, std::uint64_t> announced_;  // by channel
  std::map<std::size_t, std::uint64_t> agreed_;
  std::map<Position, std::vector<std::string>> gathered_;
  bool all_left_ = false;
  bool reported_ = false;
  std::uint64_t alive_answers_ = 0;                // to the question whether those for whom this rank waits stand still
  std::chrono::steady_clock::time_point heard_{};  // the last message of the server
  std::chrono::steady_clock::time_point last_progress_{};  // that was told
  std::exception_ptr own_exception_;                       // of the cause that this rank told
  FirstFailure failure_;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace

std::unique_ptr<Control> join_rendezvous(const JoinOptions& options, std::chrono::milliseconds timeout) {
  return std::make_unique<RendezvousControl>(options, timeout);
}

}  // namespace tessera::comm
