// A rank's end of the rendezvous after it was admitted.
#include "comm/rendezvous/rendezvous_control.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <pthread.h>

#include "comm/patience.hpp"
#include "comm/rendezvous/messages.hpp"
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

}  // namespace

RendezvousControl::RendezvousControl(const JoinOptions& options, std::chrono::milliseconds timeout)
    : options_(options),
      timeout_(timeout),
      connection_(join(options)),
      members_{static_cast<std::uint64_t>(options.ranks)} {
  connection_.allow(most_payload(options.ranks));
  thread_ = std::thread([this] { work(); });
}

RendezvousControl::~RendezvousControl() {
  ending_.store(true);
  wake_.wake();
  thread_.join();
}

// What was said before the end is there when it ends: a turn that waits for nothing sends it.
void RendezvousControl::work() noexcept {
  ::pthread_setname_np(::pthread_self(), "control");
  try {
    for (bool ending = false, there = true; there && !ending;) {
      ending = ending_.load();
      there = exchange_bytes(ending ? 0 : longest_poll_ms);
    }
    const auto deadline = steady_clock::now() + last_words;
    while (connection_.flush() && connection_.has_to_send() && wait_for(connection_.descriptor(), POLLOUT, deadline)) {
    }
  } catch (const std::exception& error) {
    const Lock lock(mutex_);
    fail(lock, rank(), fmt::format("rank {} does not understand the rendezvous: {}", rank(), error.what()));
  }
  lose_connection();
}

// Whether the connection still stands. Waits so long for something to do.
bool RendezvousControl::exchange_bytes(int milliseconds) {
  const bool has_to_send = connection_.has_to_send();
  pollfd polled[] = {wake_.polled(), {.fd = connection_.descriptor(), .events = POLLIN, .revents = 0}};
  if (has_to_send) polled[1].events |= POLLOUT;
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

void RendezvousControl::hear(const Frame& frame) {
  if (frame.kind == FrameKind::failed) return hear_failure(frame.payload);
  const Lock lock(mutex_);
  FieldReader reader(frame.payload);
  if (frame.kind == FrameKind::left) {
    all_left_ = true;
  } else if (frame.kind == FrameKind::reported) {
    reported_ = true;
  } else if (frame.kind == FrameKind::alive) {
    ++alive_answers_;
  } else if (frame.kind == FrameKind::agreed || frame.kind == FrameKind::gathered) {
    const Position position = read_position(reader);
    if (frame.kind == FrameKind::gathered) hear_blobs(position, reader);
    count_at(agreed_, position.channel) = position.number;
  } else {
    throw DataError(fmt::format("a message of kind {} is a rank's", static_cast<int>(frame.kind)));
  }
  changed_.notify_all();
}

void RendezvousControl::hear_blobs(const Position& position, FieldReader& reader) {
  std::vector<std::string>& blobs = gathered_[{position.channel, position.number}];
  for (std::uint64_t place = 0; place < count_at(members_, position.channel); ++place)
    blobs.emplace_back(reader.text());
  reader.require_end();
}

void RendezvousControl::hear_failure(std::string_view payload) {
  FieldReader reader(payload);
  const auto rank = static_cast<int>(reader.number<std::uint32_t>());
  const Position verdict = read_position(reader);
  const Lock lock(mutex_);
  fail(lock, rank, reader.rest(), verdict);
}

// After the job's end, and after its failure, that is how it goes.
void RendezvousControl::lose_connection() noexcept {
  const Lock lock(mutex_);
  if (ending_.load() || all_left_) return;
  fail(lock, 0,
       fmt::format(
           "rank {}'s connection to rank 0 at {} broke off: the process of rank 0 has ended, or its host cannot be "
           "reached",
           rank(), to_string(options_.endpoint)));
}

void RendezvousControl::fail(const Lock&, int rank, std::string_view cause, const Position& verdict) noexcept {
  if (failure_.record(rank, cause, rank == options_.rank ? own_exception_ : nullptr, verdict)) changed_.notify_all();
}

void RendezvousControl::send(const Lock&, FrameKind kind, std::string_view payload) {
  append_frame(outgoing_, kind, payload);
  wake_.wake();
}

std::uint64_t& RendezvousControl::count_at(std::vector<std::uint64_t>& counts, std::size_t channel) {
  if (counts.size() <= channel) counts.resize(channel + 1);
  return counts[channel];
}

// Buffers keep their capacity, so a step that repeats itself needs no memory.
Position RendezvousControl::announce(const Lock& lock, std::size_t channel, const Signature& signature,
                                     const std::string_view* blob) {
  if (failure() != nullptr) return {.channel = channel, .number = 0};
  encode(signature, code_);
  payload_.clear();
  FieldWriter writer(payload_);
  writer.number(static_cast<std::uint32_t>(channel));
  writer.number(static_cast<std::uint8_t>(blob != nullptr));
  writer.text(code_);
  if (blob != nullptr) writer.raw(*blob);
  send(lock, FrameKind::announce, payload_);
  return {.channel = channel, .number = ++count_at(announced_, channel)};
}

Position RendezvousControl::announce(std::size_t channel, const Signature& signature) {
  const Lock lock(mutex_);
  return announce(lock, channel, signature, nullptr);
}

void RendezvousControl::await_agreement(const Position& position, const Signature& signature) {
  Lock lock(mutex_);
  await(lock, position, signature);
}

// The server names who is missing; if it does not even do that, it is the one.
void RendezvousControl::await(Lock& lock, const Position& position, const Signature& signature) {
  auto deadline = steady_clock::now() + timeout_;  // until the next question, then until the server is given up
  std::optional<std::uint64_t> asked;              // the answers before it
  const auto agreed = [&] { return position.number > 0 && count_at(agreed_, position.channel) >= position.number; };
  while (!agreed()) {
    if (failure() != nullptr) fail_at(position);
    if (asked && *asked != alive_answers_) {
      asked.reset();
      deadline = steady_clock::now() + look_interval(timeout_);
    } else if (!asked && steady_clock::now() >= deadline) {
      send_lateness(lock, position, signature, true);
      asked = alive_answers_;
      deadline = steady_clock::now() + patience;
    } else if (asked && steady_clock::now() >= deadline) {
      fail(
          lock, 0,
          fmt::format("rank {} waited up to {:.3g} s in {} for rank 0's rendezvous at {}, which did not answer", rank(),
                      std::chrono::duration<double>(timeout_).count(), brief(signature), to_string(options_.endpoint)));
    } else {
      changed_.wait_until(lock, deadline);
    }
  }
}

void RendezvousControl::send_lateness(const Lock& lock, const Position& position, const Signature& signature,
                                      bool on_host) {
  encode(signature, code_);
  payload_.clear();
  append_position(payload_, position);
  FieldWriter writer(payload_);
  writer.number(static_cast<std::uint8_t>(on_host));
  writer.raw(code_);
  send(lock, FrameKind::late, payload_);
}

std::vector<std::string> RendezvousControl::exchange(std::size_t channel, const Signature& signature,
                                                     std::string_view blob) {
  if (blob.size() > most_blob) {
    throw UsageError(fmt::format("rank {} gives {} bytes to {}, but a blob has {} at most", rank(), blob.size(),
                                 brief(signature), most_blob));
  }
  Lock lock(mutex_);
  const Position position = announce(lock, channel, signature, &blob);
  await(lock, position, signature);
  auto node = gathered_.extract({position.channel, position.number});
  return std::move(node.mapped());
}

// What the server is told of the group stands before the blob, and does not come back.
Control::Opened RendezvousControl::open(const std::string& name, const std::optional<Group>& group,
                                        std::string_view blob) {
  std::string said;
  Opening opening{.name = communicator_name(name, group), .place = static_cast<std::uint32_t>(rank())};
  if (group) {
    opening.groups = static_cast<std::uint32_t>(group->count());
    opening.group = static_cast<std::uint32_t>(group->index_of(rank()));
    opening.place = static_cast<std::uint32_t>(group->place());
  }
  append_opening(said, opening);
  std::vector<std::string> blobs = exchange(0, signature_of_creation(creation_label(name, group)), said.append(blob));
  Members members = members_of(group, rank(), size());
  const Lock lock(mutex_);
  const std::size_t channel = take_channel(opened_, group, rank());
  count_at(members_, channel) = members.ranks.size();
  return {.channel = channel, .members = std::move(members), .blobs = std::move(blobs)};
}

void RendezvousControl::late(const Position& position, const Signature& signature) noexcept {
  const Lock lock(mutex_);
  send_lateness(lock, position, signature, false);
}

// The first cause is the one that came to the server first; without an answer this rank's own stands.
void RendezvousControl::abort(std::string_view cause, std::exception_ptr exception) noexcept {
  Lock lock(mutex_);
  if (failure() != nullptr) return;
  if (own_exception_ == nullptr) own_exception_ = std::move(exception);
  send(lock, FrameKind::failed, cause);
  if (changed_.wait_for(lock, last_words, [this] { return failure() != nullptr; })) return;
  fail(lock, rank(), cause);
}

void RendezvousControl::leave() noexcept {
  Lock lock(mutex_);
  send(lock, FrameKind::left, "");
  changed_.wait(lock, [this] { return all_left_ || failure() != nullptr; });
}

// To the server, which is asked by those who wait.
void RendezvousControl::note_progress() noexcept {
  const Lock lock(mutex_);
  if (steady_clock::now() - last_progress_ < look_interval(timeout_)) return;
  last_progress_ = steady_clock::now();
  send(lock, FrameKind::alive, "");
}

void RendezvousControl::say_reported() noexcept {
  const Lock lock(mutex_);
  send(lock, FrameKind::reported, "");
}

bool RendezvousControl::wait_for_report() noexcept {
  Lock lock(mutex_);
  return changed_.wait_for(lock, std::min<std::chrono::milliseconds>(timeout_, patience), [this] { return reported_; });
}

}  // namespace tessera::comm
