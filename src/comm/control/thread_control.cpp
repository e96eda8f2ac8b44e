// Everything happens under the room's mutex, so which error a rank sees is never a race.
#include "comm/control/thread_control.hpp"

#include <fmt/format.h>

#include <utility>

#include "comm/job_failure.hpp"
#include "comm/signature.hpp"
#include "tessera/base/error.hpp"

namespace tessera::comm {

void ThreadControlRoom::abort(int rank, std::string_view cause, std::exception_ptr exception) noexcept {
  const Lock lock(mutex_);
  if (failure_.record(rank, cause, std::move(exception))) changed_.notify_all();
}

void ThreadControlRoom::note_left(int rank) noexcept {
  const Lock lock(mutex_);
  if (ledger_.has_left(rank)) return;
  ++left_;
  conclude(rank, ledger_.leave(rank));
  changed_.notify_all();
}

// The mutex is held.
void ThreadControlRoom::conclude(int rank, const std::optional<Verdict>& verdict) noexcept {
  if (!verdict || failure() != nullptr) return;
  verdict_ = verdict->position;
  failure_.record(rank, verdict->text, std::make_exception_ptr(CommunicationError(verdict->text)));
  changed_.notify_all();
}

void ThreadControlRoom::fail_at(const Position& position) const {
  if (verdict_ && was_there(position, *verdict_)) throw CommunicationError(failure()->cause);
  throw_aborted(*failure());
}

void ThreadControlRoom::await(Lock& lock, int rank, const Position& position, const Signature& signature) {
  Patience patience(timeout_);
  while (ledger_.agreed(position.channel) < position.number) {
    if (failure() != nullptr) fail_at(position);
    const auto next_look = patience.look();
    if (patience.is_over()) {
      encode(signature, code_);
      const auto is_silent = [&](int other) { return patience.is_over(life(other).last()); };
      conclude(rank, ledger_.late({position, code_, timeout_, Ledger::WaitFor::ranks, is_silent}));
      if (failure() != nullptr) continue;
    }
    changed_.wait_until(lock, next_look);
  }
}

Position ThreadControl::announce(const Lock&, std::size_t channel, const Signature& signature) {
  if (room_.failure() != nullptr) return {.channel = channel, .number = 0};
  encode(signature, room_.code_);
  const std::uint64_t agreed = room_.ledger_.agreed(channel);
  room_.conclude(rank_, room_.ledger_.announce(rank_, channel, room_.code_));
  if (room_.ledger_.agreed(channel) != agreed) {
    const auto now = SignOfLife::Clock::now();
    for (const int member : room_.ledger_.members(channel)) room_.life(member).note(now);  // none has waited in vain
    room_.changed_.notify_all();
  }
  return {.channel = channel, .number = room_.ledger_.announced(channel, rank_)};
}

Position ThreadControl::announce(std::size_t channel, const Signature& signature) {
  const Lock lock(room_.mutex_);
  return announce(lock, channel, signature);
}

void ThreadControl::await_agreement(const Position& position, const Signature& signature) {
  Lock lock(room_.mutex_);
  if (position.number == 0) room_.fail_at(position);
  room_.await(lock, rank_, position, signature);
}

std::vector<std::string> ThreadControl::exchange(std::size_t channel, const Signature& signature,
                                                 std::string_view blob) {
  Lock lock(room_.mutex_);
  const Position position = announce(lock, channel, signature);
  if (position.number == 0) room_.fail_at(position);
  const auto place = std::pair(position.channel, position.number);
  auto& mail = room_.mail_[place];
  mail.blobs.resize(room_.ledger_.members(channel).size());
  mail.blobs[room_.ledger_.place(channel, rank_)] = blob;
  room_.await(lock, rank_, position, signature);
  std::vector<std::string> blobs = mail.blobs;
  if (++mail.takers == blobs.size()) room_.mail_.erase(place);
  return blobs;
}

// Whoever comes first opens the channels of all groups.
Control::Opened ThreadControl::open(const std::string& name, const std::optional<Group>& group, std::string_view blob) {
  const std::size_t channel = take_channel(opened_, group, rank_);
  std::vector<std::string> blobs = exchange(0, signature_of_creation(creation_label(name, group)), blob);
  const Lock lock(room_.mutex_);
  for (std::size_t index = 0; room_.ledger_.channels() <= opened_; ++index) {
    room_.ledger_.open(communicator_name(name, group),
                       group ? group->ranks_of(static_cast<int>(index)) : std::vector<int>());
  }
  return {.channel = channel, .members = members_of(group, rank_, size()), .blobs = std::move(blobs)};
}

void ThreadControl::late(const Position& position, const Signature& signature) noexcept {
  const Lock lock(room_.mutex_);
  encode(signature, room_.code_);
  const auto now = SignOfLife::Clock::now();
  const auto is_silent = [&](int other) { return now - room_.life(other).last() >= room_.timeout_; };
  room_.conclude(rank_, room_.ledger_.late({position, room_.code_, room_.timeout_, Ledger::WaitFor::end, is_silent}));
}

void ThreadControl::leave() noexcept {
  room_.note_left(rank_);
  Lock lock(room_.mutex_);
  room_.changed_.wait(lock, [this] { return room_.left_ == size() || room_.failure() != nullptr; });
}

}  // namespace tessera::comm
