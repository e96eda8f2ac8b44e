// One message is a header and what belongs to its kind; pieces of staging areas follow as messages of their own, from
// and into the areas. A rank's messages are handled in the order in which it sent them, each after the pieces of the
// one before, because an arrival must not overtake the data that it stands for.
#include "comm/processes/exchange.hpp"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <initializer_list>
#include <iterator>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "tessera/base/error.hpp"

namespace tessera::comm {
namespace {

using std::chrono::steady_clock;

constexpr int message_tag = 1;
constexpr int piece_tag = 2;
// MPI moves only when it is called: that often while there is something to do, and that often while there is not.
constexpr std::chrono::microseconds busy_pause{20};
constexpr std::chrono::microseconds idle_pause{500};
constexpr auto idle_after = std::chrono::milliseconds(5);

template <typename Value>
Value read(std::span<const std::byte> bytes, std::size_t offset = 0) {
  Value value;
  std::memcpy(static_cast<void*>(&value), bytes.data() + offset, sizeof(Value));
  return value;
}

// A thread of its own makes all calls of MPI, so that messages move while the rank computes.
class HostExchange final : public Exchange {
 public:
  HostExchange(ProcessJob& job, std::unique_ptr<HostChannel> channel)
      : job_(job),
        everybody_(everybody(job.place().rank, job.place().ranks)),
        channel_(std::move(channel)),
        incoming_(static_cast<std::size_t>(job.place().ranks)),
        thread_([this] { work(); }) {}

  ~HostExchange() final {
    ending_ = true;
    thread_.join();
    const auto nothing_from = [](const std::deque<Incoming>& queue) { return queue.empty(); };
    if (sending_.empty() && std::all_of(incoming_.begin(), incoming_.end(), nothing_from)) return;
    // Until the process ends, and after everything that is static in it: MPI may still read and write there.
    static auto& kept = *new std::vector<std::pair<decltype(sending_), decltype(incoming_)>>;
    kept.emplace_back(std::move(sending_), std::move(incoming_));
  }

  void add(ProcessGroup& group) final {
    const std::lock_guard lock(group_mutex_);
    groups_.push_back(&group);
    next_channel_ = std::max<std::uint64_t>(next_channel_, group.channel() + 1);
  }

  void remove(ProcessGroup& group) final {
    const std::lock_guard lock(group_mutex_);
    std::erase(groups_, &group);
  }

  void tell_post(const ProcessGroup& group) final {
    const auto post = std::as_bytes(std::span(&group.slot(group.place()).post, 1));
    const std::string_view code = group.code(group.place());
    tell(one_per_host(group.members()), message_of({.kind = Kind::post, .round = 0, .channel = group.channel()},
                                                   {post, std::as_bytes(std::span(code))}));
  }

  void tell_staged(const ProcessGroup& group, const Staged& staged) final {
    const std::vector<int>& host_of = job_.place().host_of;
    const std::byte* const area = group.staging(group.place(), staged.round);
    for (const int to : one_per_host(group.members())) {
      Outgoing outgoing{.to = to, .message = {}, .pieces = {}, .transfers = {}, .area = group.memory()};
      std::vector<Piece> pieces;
      const auto add_piece = [&](std::size_t offset) {
        pieces.push_back({.offset = offset, .bytes = staged.bytes});
        outgoing.pieces.emplace_back(area + offset, staged.bytes);
      };
      const int host = host_of[static_cast<std::size_t>(to)];
      for (int place = 0; place < group.size() && staged.bytes > 0 && staged.stride > 0; ++place) {
        const bool is_there = host_of[static_cast<std::size_t>(group.rank_at(place))] == host;
        if (is_there) add_piece(static_cast<std::size_t>(place) * staged.stride);
      }
      if (staged.bytes > 0 && staged.stride == 0) add_piece(0);
      const Header header{
          .kind = Kind::staged, .round = static_cast<std::uint32_t>(staged.round), .channel = group.channel()};
      outgoing.message = message_of(header, {std::as_bytes(std::span(pieces))});
      push(std::move(outgoing));
    }
  }

  void tell_failure(const Position& verdict, std::string_view cause) noexcept final {
    tell_of_job(Kind::failure, {std::as_bytes(std::span(&verdict, 1)), std::as_bytes(std::span(cause))});
  }

  void tell_news(Kind kind, std::span<const std::byte> rest) noexcept final { tell_of_job(kind, {rest}); }

  void ask(int rank) noexcept final {
    try {
      tell({&rank, 1}, message_of({.kind = Kind::question, .round = 0, .channel = 0}, {}));
    } catch (...) {
    }
  }

  void flush() noexcept final {
    const auto longest = std::min<std::chrono::milliseconds>(job_.timeout(), std::chrono::seconds(5));
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, longest, [&] { return unsent_ == 0; });
  }

 private:
  using Buffer = std::vector<std::byte>;
  using Parts = std::initializer_list<std::span<const std::byte>>;
  using Transfer = HostChannel::Transfer;
  struct Header {
    Kind kind;
    std::uint32_t round;  // of what is staged
    std::uint64_t channel;
  };
  struct Piece {  // of a staging area
    std::uint64_t offset;
    std::uint64_t bytes;
  };
  struct Outgoing {
    int to = 0;
    Buffer message;
    std::vector<std::span<const std::byte>> pieces;
    std::vector<Transfer> transfers;
    std::shared_ptr<SharedMemory> area;  // of the pieces
  };
  struct Incoming {
    Buffer message;
    std::vector<Transfer> transfers;  // of the message, then of its pieces
    bool begun = false;               // its pieces are being received
    std::shared_ptr<SharedMemory> area;
  };
  enum class Handled { done, pieces_begun, not_yet };

  static Buffer message_of(const Header& header, Parts rest) {
    Buffer message;
    const auto add_part = [&](std::span<const std::byte> part) {
      message.insert(message.end(), part.begin(), part.end());
    };
    add_part(std::as_bytes(std::span(&header, 1)));
    for (const std::span<const std::byte> part : rest) add_part(part);
    return message;
  }

  void push(Outgoing outgoing) {
    const std::lock_guard lock(mutex_);
    told_.push_back(std::move(outgoing));
    ++unsent_;
    changed_.notify_all();
  }

  // Returns for each other host the one of the group's ranks that writes down what this rank says.
  std::vector<int> one_per_host(const Members& members) const {
    const Place& place = job_.place();
    std::vector<std::vector<int>> hosts(static_cast<std::size_t>(place.hosts));
    for (const int rank : all_elsewhere(members)) {
      hosts[static_cast<std::size_t>(place.host_of[static_cast<std::size_t>(rank)])].push_back(rank);
    }
    std::vector<int> chosen;
    for (const std::vector<int>& ranks : hosts) {
      if (!ranks.empty()) chosen.push_back(ranks[static_cast<std::size_t>(members.place) % ranks.size()]);
    }
    return chosen;
  }

  std::vector<int> all_elsewhere(const Members& members) const {
    std::vector<int> ranks;
    const auto is_elsewhere = [&](int rank) { return !job_.place().is_here(rank); };
    std::copy_if(members.ranks.begin(), members.ranks.end(), std::back_inserter(ranks), is_elsewhere);
    return ranks;
  }

  void tell(std::span<const int> ranks, const Buffer& message) {
    for (const int to : ranks) push({.to = to, .message = message, .pieces = {}, .transfers = {}, .area = nullptr});
  }

  // One process of a host writes down what concerns waits; what ends the job goes to all.
  void tell_of_job(Kind kind, Parts parts) noexcept {
    try {
      const bool to_all = kind == Kind::failure || kind == Kind::reported;
      tell(to_all ? all_elsewhere(everybody_) : one_per_host(everybody_),
           message_of({.kind = kind, .round = 0, .channel = 0}, parts));
    } catch (...) {
    }
  }

  void work() {
    ::pthread_setname_np(::pthread_self(), "hosts");
    auto last_moved = steady_clock::now();
    try {
      while (!ending_) {
        const auto now = steady_clock::now();
        if (send_and_receive()) {
          last_moved = now;
          continue;
        }
        std::unique_lock lock(mutex_);
        if (told_.empty()) changed_.wait_for(lock, now - last_moved < idle_after ? busy_pause : idle_pause);
      }
    } catch (const std::exception& error) {
      job_.abort(error.what(), std::current_exception());
    }
  }

  bool send_and_receive() {
    bool moved = begin_sends();
    moved = end_sends() || moved;
    moved = begin_receives() || moved;
    for (int from = 0; from < job_.place().ranks; ++from) moved = advance(from) || moved;
    return moved;
  }

  bool begin_sends() {
    std::deque<Outgoing> told;
    {
      const std::lock_guard lock(mutex_);
      told.swap(told_);
    }
    for (Outgoing& outgoing : told) {
      outgoing.transfers.push_back(channel_->send(outgoing.to, message_tag, outgoing.message));
      for (const auto& piece : outgoing.pieces) {
        outgoing.transfers.push_back(channel_->send(outgoing.to, piece_tag, piece));
      }
      sending_.push_back(std::move(outgoing));
    }
    return !told.empty();
  }

  bool all_ended(std::vector<Transfer>& transfers) {
    std::erase_if(transfers, [&](Transfer transfer) { return channel_->ended(transfer); });
    return transfers.empty();
  }

  bool end_sends() {
    const std::size_t ended =
        std::erase_if(sending_, [&](Outgoing& outgoing) { return all_ended(outgoing.transfers); });
    if (ended == 0) return false;
    const std::lock_guard lock(mutex_);
    unsent_ -= ended;
    changed_.notify_all();
    return true;
  }

  bool begin_receives() {
    bool any = false;
    while (const auto arrival = channel_->probe(message_tag)) {
      Incoming incoming{.message = Buffer(arrival->bytes), .transfers = {}, .begun = false, .area = nullptr};
      incoming.transfers.push_back(channel_->receive(arrival->from, message_tag, incoming.message));
      incoming_[static_cast<std::size_t>(arrival->from)].push_back(std::move(incoming));
      any = true;
    }
    return any;
  }

  // Handles what can be handled of one rank's messages. Whether anything could.
  bool advance(int from) {
    std::deque<Incoming>& queue = incoming_[static_cast<std::size_t>(from)];
    bool any = false;
    while (!queue.empty() && all_ended(queue.front().transfers)) {
      const Handled handled = handle(from, queue.front());
      if (handled == Handled::not_yet) break;
      if (handled == Handled::done) queue.pop_front();
      any = true;
    }
    return any;
  }

  ProcessGroup* find(std::uint64_t channel) {
    const auto found = std::find_if(groups_.begin(), groups_.end(),
                                    [&](const ProcessGroup* group) { return group->channel() == channel; });
    return found == groups_.end() ? nullptr : *found;
  }

  Handled handle(int from, Incoming& incoming) {
    const auto header = read<Header>(incoming.message);
    const auto rest = std::span<const std::byte>(incoming.message).subspan(sizeof(Header));
    switch (header.kind) {
      case Kind::failure: {
        const auto cause = rest.subspan(sizeof(Position));
        job_.note_failure(from, read<Position>(rest), {reinterpret_cast<const char*>(cause.data()), cause.size()});
        return Handled::done;
      }
      case Kind::left: job_.note_left(from); return Handled::done;
      case Kind::reported: job_.note_reported(); return Handled::done;
      case Kind::life: {
        const auto ago = read<SignOfLife::Clock::duration>(rest);
        job_.note_life(from, SignOfLife::Clock::now() - ago);
        return Handled::done;
      }
      case Kind::question:
        tell({&from, 1}, message_of({.kind = Kind::answer, .round = 0, .channel = 0}, {}));
        return Handled::done;
      case Kind::answer: job_.note_answer(from); return Handled::done;
      case Kind::post:
      case Kind::staged: break;
    }
    return handle_in_group(from, header, incoming);
  }

  // A group that this process has not made yet is waited for; one that it has ended needs no news.
  Handled handle_in_group(int from, const Header& header, Incoming& incoming) {
    const std::lock_guard lock(group_mutex_);
    ProcessGroup* const group = find(header.channel);
    if (group == nullptr) return header.channel >= next_channel_ ? Handled::not_yet : Handled::done;
    const auto rest = std::span<const std::byte>(incoming.message).subspan(sizeof(Header));
    if (header.kind == Kind::post) write_post(*group, from, rest);
    if (header.kind == Kind::staged && !rest.empty() && !std::exchange(incoming.begun, true)) {
      receive_pieces(*group, from, incoming);
      return Handled::pieces_begun;
    }
    group->arrive(group->place_of(from));
    return Handled::done;
  }

  void write_post(ProcessGroup& group, int from, std::span<const std::byte> rest) {
    const int place = group.place_of(from);
    group.slot(place).post = read<shared::Post>(rest);
    const auto code = rest.subspan(sizeof(shared::Post));
    std::memcpy(group.code_area(place), code.data(), code.size());
  }

  void receive_pieces(ProcessGroup& group, int from, Incoming& incoming) {
    const auto header = read<Header>(incoming.message);
    std::byte* const area = group.staging(group.place_of(from), header.round);
    incoming.area = group.memory();
    for (std::size_t at = sizeof(Header); at < incoming.message.size(); at += sizeof(Piece)) {
      const auto piece = read<Piece>(incoming.message, at);
      incoming.transfers.push_back(channel_->receive(from, piece_tag, {area + piece.offset, piece.bytes}));
    }
  }

  ProcessJob& job_;
  const Members everybody_;
  std::unique_ptr<HostChannel> channel_;

  std::mutex group_mutex_;  // held while a group is written into
  std::vector<ProcessGroup*> groups_;
  std::uint64_t next_channel_ = 0;  // above those of all groups so far

  std::mutex mutex_;  // of the three below
  std::condition_variable changed_;
  std::deque<Outgoing> told_;
  std::size_t unsent_ = 0;

  // The thread alone uses these.
  std::vector<Outgoing> sending_;
  std::vector<std::deque<Incoming>> incoming_;  // by rank
  std::atomic<bool> ending_ = false;
  std::thread thread_;
};

}  // namespace

std::unique_ptr<Exchange> make_exchange(ProcessJob& job, std::unique_ptr<HostChannel> channel) {
  return std::make_unique<HostExchange>(job, std::move(channel));
}

}  // namespace tessera::comm
