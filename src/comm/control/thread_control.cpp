// Whoever waits does so on its channel, so what is agreed on one wakes nobody who waits in another.
#include "comm/control/thread_control.hpp"

#include <fmt/format.h>

#include <utility>

#include "comm/job_failure.hpp"
#include "comm/signature.hpp"
#include "tessera/base/error.hpp"

namespace tessera::comm {

void ThreadControlRoom::abort(const Lock&, int rank, std::string_view cause, std::exception_ptr exception) noexcept {
  if (failure_.record(rank, cause, std::move(exception))) wake_all();
}

void ThreadControlRoom::wake_all() noexcept {
  for (std::condition_variable& changed : changed_) changed.notify_all();
  all_left_.notify_all();
}

std::size_t ThreadControlRoom::open(const Lock&, const std::string& name, const std::vector<int>& members) {
  ledger_.open(name, members);
  changed_.emplace_back();
  return ledger_.channels() - 1;
}

void ThreadControlRoom::note_left(const Lock&, int rank) noexcept {
  if (ledger_.has_left(rank)) return;
  ++left_;
  conclude(rank, ledger_.leave(rank));
  all_left_.notify_all();
}

void ThreadControlRoom::conclude(int rank, const std::optional<Verdict>& verdict) noexcept {
  if (!verdict || failure() != nullptr) return;
  failure_.record(rank, verdict->text, std::make_exception_ptr(CommunicationError(verdict->text)), verdict->position);
  wake_all();
}

Position ThreadControlRoom::announce(const Lock&, int rank, std::size_t channel, const Signature& signature) {
  if (failure() != nullptr) return {.channel = channel, .number = 0};
  encode(signature, code_);
  const std::uint64_t agreed = ledger_.agreed(channel);
  conclude(rank, ledger_.announce(rank, channel, code_));
  if (ledger_.agreed(channel) != agreed) {
    const auto now = SignOfLife::Clock::now();
    for (const int member : ledger_.members(channel)) life(member).note(now);  // none has waited in vain
    changed_[channel].notify_all();
  }
  return {.channel = channel, .number = ledger_.announced(channel, rank)};
}

void ThreadControlRoom::await_agreement(Lock& lock, int rank, const Position& position, const Signature& signature) {
  if (position.number == 0) throw_failure(*failure(), position);
  Patience patience(timeout_);
  while (ledger_.agreed(position.channel) < position.number) {
    if (failure() != nullptr) throw_failure(*failure(), position);
    const auto next_look = patience.look();
    if (patience.is_over()) {
      encode(signature, code_);
      const auto is_silent = [&](int other) { return patience.is_over(life(other).last()); };
      conclude(rank, ledger_.late({position, code_, timeout_, Ledger::WaitFor::ranks, is_silent}));
      if (failure() != nullptr) continue;
    }
    changed_[position.channel].wait_until(lock, next_look);
  }
}

Position ThreadControl::announce(std::size_t channel, const Signature& signature) {
  return room_.announce(room_.lock(), rank_, channel, signature);
}

void ThreadControl::await_agreement(const Position& position, const Signature& signature) {
  Lock lock = room_.lock();
  room_.await_agreement(lock, rank_, position, signature);
}

std::vector<std::string> ThreadControl::exchange(std::size_t channel, const Signature& signature,
                                                 std::string_view blob) {
  Lock lock = room_.lock();
  const Position position = room_.announce(lock, rank_, channel, signature);
  if (position.number == 0) fail_at(position);
  const auto place = std::pair(position.channel, position.number);
  auto& mail = room_.mail_[place];
  mail.blobs.resize(room_.ledger_.members(channel).size());
  mail.blobs[room_.ledger_.place(channel, rank_)] = blob;
  room_.await_agreement(lock, rank_, position, signature);
  std::vector<std::string> blobs = mail.blobs;
  if (++mail.takers == blobs.size()) room_.mail_.erase(place);
  return blobs;
}

// Whoever comes first opens the channels of all groups.
Control::Opened ThreadControl::open(const std::string& name, const std::optional<Group>& group, std::string_view blob) {
  const std::size_t channel = take_channel(opened_, group, rank_);
  std::vector<std::string> blobs = exchange(0, signature_of_creation(creation_label(name, group)), blob);
  const Lock lock = room_.lock();
  for (std::size_t index = 0; room_.ledger_.channels() <= opened_; ++index) {
    room_.open(lock, communicator_name(name, group),
               group ? group->ranks_of(static_cast<int>(index)) : std::vector<int>());
  }
  return {.channel = channel, .members = members_of(group, rank_, size()), .blobs = std::move(blobs)};
}

void ThreadControl::late(const Position& position, const Signature& signature) noexcept {
  const Lock lock = room_.lock();
  encode(signature, room_.code_);
  const auto now = SignOfLife::Clock::now();
  const auto is_silent = [&](int other) { return now - room_.life(other).last() >= room_.timeout_; };
  room_.conclude(rank_, room_.ledger_.late({position, room_.code_, room_.timeout_, Ledger::WaitFor::end, is_silent}));
}

void ThreadControl::leave() noexcept {
  Lock lock = room_.lock();
  room_.note_left(lock, rank_);
  room_.all_left_.wait(lock, [this] { return room_.left_ == size() || room_.failure() != nullptr; });
}

}  // namespace tessera::comm
