// Announcements stay encoded until ranks disagree.
#include "comm/control/ledger.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <list>
#include <utility>

#include "comm/collective_errors.hpp"
#include "comm/signature.hpp"
#include "tessera/base/error.hpp"

namespace tessera::comm {
namespace {

// Far more than a plan enqueues before its throttle waits.
constexpr std::size_t most_open = 1 << 16;

template <typename Condition>
std::vector<int> ranks_where(int ranks, Condition&& condition) {
  std::vector<int> chosen;
  for (int rank = 0; rank < ranks; ++rank) {
    if (condition(static_cast<std::size_t>(rank))) chosen.push_back(rank);
  }
  return chosen;
}

}  // namespace

Ledger::Ledger(int ranks) : ranks_(ranks), left_(static_cast<std::size_t>(ranks)) { open("creation"); }

void Ledger::open(std::string name) {
  Channel& channel = channels_.emplace_back();
  channel.name = std::move(name);
  channel.announced.resize(static_cast<std::size_t>(ranks_));
}

Ledger::Entry& Ledger::entry_at(Channel& channel, std::uint64_t number) {
  const auto place = static_cast<std::size_t>(number - channel.agreed - 1);
  if (place >= most_open) {
    throw DataError(fmt::format("a rank is {} collectives of communicator {} ahead of another", place, channel.name));
  }
  if (place == channel.ring.size()) {
    std::rotate(channel.ring.begin(), channel.ring.begin() + static_cast<std::ptrdiff_t>(channel.first),
                channel.ring.end());
    channel.first = 0;
    channel.ring.resize(std::max<std::size_t>(16, 2 * place),
                        {.codes = std::vector<std::string>(left_.size()), .came = 0});
  }
  channel.open = std::max(channel.open, place + 1);
  return channel.at(place);
}

std::optional<Verdict> Ledger::announce(int rank, std::size_t index, std::string_view code) {
  if (index >= channels_.size()) throw DataError(fmt::format("there is no channel {}", index));
  Channel& channel = channels_[index];
  const auto place = static_cast<std::size_t>(rank);
  Entry& entry = entry_at(channel, ++channel.announced[place]);
  entry.codes[place].assign(code);
  ++entry.came;
  if (auto verdict = compare(index)) return verdict;
  return anyone_left_ ? awaited_leaver(index) : std::nullopt;
}

std::optional<Verdict> Ledger::leave(int rank) {
  left_[static_cast<std::size_t>(rank)] = true;
  anyone_left_ = true;
  for (std::size_t channel = 0; channel < channels_.size(); ++channel) {
    if (auto verdict = awaited_leaver(channel)) return verdict;
  }
  return std::nullopt;
}

// Positions are agreed in their order, because every rank announces in order.
std::optional<Verdict> Ledger::compare(std::size_t index) {
  Channel& channel = channels_[index];
  if (channel.open == 0 || channel.at(0).came < left_.size()) return std::nullopt;
  Entry& entry = channel.at(0);
  const auto same = [&](const std::string& code) { return code == entry.codes.front(); };
  if (std::all_of(entry.codes.begin(), entry.codes.end(), same)) {
    entry.came = 0;
    channel.first = (channel.first + 1) % channel.ring.size();
    --channel.open;
    ++channel.agreed;
    return std::nullopt;
  }
  std::list<DecodedSignature> decoded;
  std::vector<Signature> signatures;
  for (const std::string& code : entry.codes) signatures.push_back(*decoded.emplace_back(code));
  return Verdict{.position = {index, channel.agreed + 1}, .text = disagreement_text(channel.name, signatures)};
}

// Of an open position, as the first rank that came told it.
const std::string& Ledger::code_at(const Channel& channel, std::size_t place) const {
  const std::uint64_t number = channel.agreed + place + 1;
  const auto came = ranks_where(ranks_, [&](std::size_t rank) { return channel.announced[rank] >= number; });
  return channel.at(place).codes[static_cast<std::size_t>(came.front())];
}

// Waiting for a rank that announces nothing more would only end with the deadline.
std::optional<Verdict> Ledger::awaited_leaver(std::size_t index) const {
  const Channel& channel = channels_[index];
  for (std::size_t place = 0; place < channel.open; ++place) {
    const std::uint64_t number = channel.agreed + place + 1;
    const auto missing =
        ranks_where(ranks_, [&](std::size_t rank) { return left_[rank] && channel.announced[rank] < number; });
    if (missing.empty()) continue;
    const auto waiting = ranks_where(ranks_, [&](std::size_t rank) { return channel.announced[rank] >= number; });
    const DecodedSignature signature(code_at(channel, place));
    return Verdict{
        .position = {index, number},
        .text =
            left_text({.communicator = channel.name, .signature = *signature, .waiting = waiting, .missing = missing})};
  }
  return std::nullopt;
}

// A rank that waits for others is as much alive as they are; ranks that wait for each other are not.
bool Ledger::stands_still(int rank, const Lateness& lateness, std::vector<bool>& asked) const {
  if (!lateness.is_silent(rank)) return false;
  if (asked[static_cast<std::size_t>(rank)]) return true;
  asked[static_cast<std::size_t>(rank)] = true;
  const auto waits_for_living = [&](const Channel& channel) {
    if (channel.announced[static_cast<std::size_t>(rank)] <= channel.agreed) return false;
    const auto missing =
        ranks_where(ranks_, [&](std::size_t other) { return channel.announced[other] <= channel.agreed; });
    return std::none_of(missing.begin(), missing.end(),
                        [&](int other) { return stands_still(other, lateness, asked); });
  };
  return std::none_of(channels_.begin(), channels_.end(), waits_for_living);
}

std::optional<Verdict> Ledger::late(const Lateness& lateness) const {
  const Position& position = lateness.position;
  if (position.channel >= channels_.size()) return std::nullopt;
  const Channel& channel = channels_[position.channel];
  const auto has_come = [&](std::size_t rank) { return channel.announced[rank] >= position.number; };
  const auto waiting = ranks_where(ranks_, has_come);
  auto missing = ranks_where(ranks_, [&](std::size_t rank) { return !has_come(rank); });
  if (waiting.empty() || (missing.empty() && lateness.waiting_for == WaitFor::ranks)) return std::nullopt;
  const bool all_came = missing.empty();
  std::erase_if(missing, [&](int rank) {
    std::vector<bool> asked(left_.size());
    return !stands_still(rank, lateness, asked);
  });
  if (missing.empty() && !all_came) return std::nullopt;
  const DecodedSignature signature(lateness.code);
  const Standstill standstill{
      .communicator = channel.name, .signature = *signature, .waiting = waiting, .missing = missing};
  return Verdict{
      .position = position,
      .text = missing.empty() ? stuck_text(standstill, lateness.timeout) : timeout_text(standstill, lateness.timeout)};
}

}  // namespace tessera::comm
