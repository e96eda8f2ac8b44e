// Whoever waits does so on its channel, so what is agreed on one wakes nobody who waits in another.
#include "comm/control/control_room.hpp"

#include <fmt/format.h>

#include <utility>

#include "comm/fields.hpp"
#include "comm/job_failure.hpp"
#include "comm/signature.hpp"
#include "tessera/base/error.hpp"

namespace tessera::comm {

ControlRoom::ControlRoom(int size, std::chrono::milliseconds timeout, std::function<std::string()> remark)
    : size_(size),
      timeout_(timeout),
      remark_(std::move(remark)),
      lives_(static_cast<std::size_t>(size)),
      changed_(1),
      ledger_(size) {}

void ControlRoom::abort(const Lock&, int rank, std::string_view cause, std::exception_ptr exception,
                        const Position& verdict) noexcept {
  if (!failure_.record(rank, cause, std::move(exception), verdict)) return;
  for (std::condition_variable& changed : changed_) changed.notify_all();
  left_changed_.notify_all();
}

void ControlRoom::conclude(const Lock& lock, int rank, const std::optional<Verdict>& verdict) noexcept {
  if (!verdict || failure() != nullptr) return;
  const std::string text = verdict->text + (remark_ ? remark_() : "");
  abort(lock, rank, text, std::make_exception_ptr(CommunicationError(text)), verdict->position);
}

std::size_t ControlRoom::open(const Lock&, std::string name, std::vector<int> members) {
  ledger_.open(std::move(name), std::move(members));
  changed_.emplace_back();
  return ledger_.channels() - 1;
}

void ControlRoom::open_channels(const Lock& lock) {
  for (std::vector<int>& group : partition_of(openings_)) open(lock, openings_.front().name, std::move(group));
}

std::string_view ControlRoom::encoded(const Lock&, const Signature& signature) {
  encode(signature, code_);
  return code_;
}

void ControlRoom::keep_blob(int rank, std::size_t channel, const std::string_view* blob) {
  const std::size_t place = ledger_.place(channel, rank);
  FieldReader reader(blob == nullptr ? "" : *blob);
  openings_.resize(lives_.size());
  if (channel == 0) openings_[place] = read_opening(reader, size_);
  const std::string_view rest = reader.rest();
  if (rest.size() > Control::most_blob) throw DataError(fmt::format("a blob has {} bytes", rest.size()));
  if (blob == nullptr) return;
  auto& blobs = mail_[{.channel = channel, .number = ledger_.announced(channel, rank) + 1}].blobs;
  blobs.resize(ledger_.members(channel).size());
  blobs[place] = rest;
}

Position ControlRoom::announce(const Lock& lock, int rank, std::size_t channel, std::string_view code,
                               const std::string_view* blob) {
  if (failure() != nullptr) return {.channel = channel, .number = 0};
  keep_blob(rank, channel, blob);
  const std::uint64_t agreed = ledger_.agreed(channel);
  conclude(lock, rank, ledger_.announce(rank, channel, code));
  if (ledger_.agreed(channel) != agreed) {
    if (channel == 0) open_channels(lock);
    const auto now = SignOfLife::Clock::now();
    for (const int member : ledger_.members(channel)) life(member).note(now);  // none has waited in vain
    changed_[channel].notify_all();
  }
  return {.channel = channel, .number = ledger_.announced(channel, rank)};
}

void ControlRoom::await_agreement(Lock& lock, int rank, const Position& position, const Signature& signature) {
  if (position.number == 0) throw_failure(*failure(), position);
  Patience patience(timeout_);
  while (ledger_.agreed(position.channel) < position.number) {
    if (failure() != nullptr) throw_failure(*failure(), position);
    const auto next_look = patience.look();
    if (patience.is_over()) {
      const auto is_silent = [&](int other) { return patience.is_over(life(other).last()); };
      conclude(lock, rank,
               ledger_.late({position, encoded(lock, signature), timeout_, Ledger::WaitFor::ranks, is_silent}));
      if (failure() != nullptr) continue;
    }
    changed_[position.channel].wait_until(lock, next_look);
  }
}

void ControlRoom::late(const Lock& lock, int rank, const Position& position, std::string_view code,
                       Ledger::WaitFor waiting_for) {
  const auto now = SignOfLife::Clock::now();
  const auto is_silent = [&](int other) { return now - life(other).last() >= timeout_; };
  conclude(lock, rank, ledger_.late({position, code, timeout_, waiting_for, is_silent}));
}

std::optional<std::vector<std::string>> ControlRoom::take_blobs(const Lock&, const Position& position,
                                                                std::size_t takers) {
  const auto mail = mail_.find(position);
  if (mail == mail_.end()) return std::nullopt;
  if (++mail->second.taken < takers) return mail->second.blobs;
  auto node = mail_.extract(mail);
  return std::move(node.mapped().blobs);
}

void ControlRoom::leave(const Lock& lock, int rank) {
  if (ledger_.has_left(rank)) return;
  ++left_;
  conclude(lock, rank, ledger_.leave(rank));
  left_changed_.notify_all();
}

void ControlRoom::wait_for_leavers(Lock& lock) {
  left_changed_.wait(lock, [&] { return all_left(lock) || failure() != nullptr; });
}

}  // namespace tessera::comm
