// Announcements stay encoded until ranks disagree.
#include "comm/control/ledger.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <list>
#include <utility>

#include "comm/collective_errors.hpp"
#include "comm/members.hpp"
#include "tessera/base/error.hpp"

namespace tessera::comm {
namespace {

// Far more than a plan enqueues before its throttle waits.
constexpr std::size_t most_open = 1 << 16;

// Returns the channel's members at whose place the condition holds, ascending.
template <typename Condition>
std::vector<int> members_where(const std::vector<int>& members, Condition&& condition) {
  std::vector<int> chosen;
  for (std::size_t place = 0; place < members.size(); ++place) {
    if (condition(place)) chosen.push_back(members[place]);
  }
  std::sort(chosen.begin(), chosen.end());
  return chosen;
}

}  // namespace

Ledger::Ledger(int ranks) : ranks_(ranks), left_(static_cast<std::size_t>(ranks)) { open("creation"); }

void Ledger::open(std::string name, std::vector<int> members) {
  if (members.empty()) members = everybody(0, ranks_).ranks;
  Channel& channel = channels_.emplace_back();
  channel.name = std::move(name);
  channel.announced.resize(members.size());
  channel.members = std::move(members);
}

// Where all ranks are members, each is at the place of its number.
std::optional<std::size_t> Ledger::Channel::place_of(int rank) const {
  const auto number = static_cast<std::size_t>(rank);
  if (number < members.size() && members[number] == rank) return number;
  const auto found = std::find(members.begin(), members.end(), rank);
  if (found == members.end()) return std::nullopt;
  return static_cast<std::size_t>(found - members.begin());
}

std::size_t Ledger::place(std::size_t index, int rank) const {
  if (index >= channels_.size()) throw DataError(fmt::format("there is no channel {}", index));
  if (const auto place = channels_[index].place_of(rank)) return *place;
  throw DataError(
      fmt::format("rank {} is not of the group of channel {} (communicator {})", rank, index, channels_[index].name));
}

std::vector<int> Ledger::Channel::that_came(std::uint64_t number) const {
  return members_where(members, [&](std::size_t place) { return announced[place] >= number; });
}

std::vector<int> Ledger::Channel::that_did_not_come(std::uint64_t number) const {
  return members_where(members, [&](std::size_t place) { return announced[place] < number; });
}

Ledger::Entry& Ledger::entry_at(Channel& channel, std::uint64_t number) {
  const auto ahead = static_cast<std::size_t>(number - channel.agreed - 1);
  if (ahead >= most_open) {
    throw DataError(fmt::format("a rank is {} collectives of communicator {} ahead of another", ahead, channel.name));
  }
  if (ahead == channel.ring.size()) {
    std::rotate(channel.ring.begin(), channel.ring.begin() + static_cast<std::ptrdiff_t>(channel.first),
                channel.ring.end());
    channel.first = 0;
    channel.ring.resize(std::max<std::size_t>(16, 2 * ahead),
                        {.codes = std::vector<std::string>(channel.members.size()), .came = 0});
    make_room(channel, channel.longest);
  }
  channel.open = std::max(channel.open, ahead + 1);
  return channel.at(ahead);
}

void Ledger::make_room(Channel& channel, std::size_t code_size) {
  channel.longest = code_size;
  for (Entry& entry : channel.ring) {
    for (std::string& code : entry.codes) code.reserve(code_size);
  }
}

std::optional<Verdict> Ledger::announce(int rank, std::size_t index, std::string_view code) {
  const std::size_t own = place(index, rank);
  Channel& channel = channels_[index];
  Entry& entry = entry_at(channel, ++channel.announced[own]);
  if (code.size() > channel.longest) make_room(channel, code.size());
  entry.codes[own].assign(code);
  ++entry.came;
  if (auto verdict = compare(index)) return verdict;
  return anyone_left_ ? awaited_leaver(index) : std::nullopt;
}

std::optional<Verdict> Ledger::leave(int rank, Leaving how) {
  left_[static_cast<std::size_t>(rank)] = true;
  anyone_left_ = true;
  leaving_ = how;
  for (std::size_t channel = 0; channel < channels_.size(); ++channel) {
    if (auto verdict = awaited_leaver(channel)) return verdict;
  }
  return std::nullopt;
}

// Positions are agreed in their order, because every rank announces in order.
std::optional<Verdict> Ledger::compare(std::size_t index) {
  Channel& channel = channels_[index];
  if (channel.open == 0 || channel.at(0).came < channel.members.size()) return std::nullopt;
  Entry& entry = channel.at(0);
  const auto same = [&](const std::string& code) { return code == entry.codes.front(); };
  if (std::all_of(entry.codes.begin(), entry.codes.end(), same)) {
    entry.came = 0;
    channel.first = (channel.first + 1) % channel.ring.size();
    --channel.open;
    ++channel.agreed;
    return std::nullopt;
  }
  const std::vector<int> ranks = channel.that_came(channel.agreed + 1);
  std::list<DecodedSignature> decoded;
  std::vector<Signature> signatures;
  for (const int rank : ranks) signatures.push_back(*decoded.emplace_back(entry.codes[*channel.place_of(rank)]));
  return Verdict{.position = {index, channel.agreed + 1}, .text = disagreement_text(channel.name, signatures, ranks)};
}

// Returns the code of an open position, as the first rank that came told it.
const std::string& Ledger::code_at(const Channel& channel, std::size_t ahead) const {
  const int first = channel.that_came(channel.agreed + ahead + 1).front();
  return channel.at(ahead).codes[*channel.place_of(first)];
}

// Waiting for a rank that announces nothing more would only end with the deadline.
std::optional<Verdict> Ledger::awaited_leaver(std::size_t index) const {
  const Channel& channel = channels_[index];
  for (std::size_t ahead = 0; ahead < channel.open; ++ahead) {
    const std::uint64_t number = channel.agreed + ahead + 1;
    auto missing = channel.that_did_not_come(number);
    std::erase_if(missing, [&](int rank) { return !has_left(rank); });
    if (missing.empty()) continue;
    const auto waiting = channel.that_came(number);
    const DecodedSignature signature(code_at(channel, ahead));
    const Standstill standstill{channel.name, *signature, waiting, missing};
    return Verdict{.position = {index, number},
                   .text = leaving_ == Leaving::left ? left_text(standstill) : ended_text(standstill)};
  }
  return std::nullopt;
}

// A rank that waits for others is as much alive as they are; ranks that wait for each other are not.
bool Ledger::stands_still(int rank, const Lateness& lateness, std::vector<bool>& asked) const {
  if (!lateness.is_silent(rank)) return false;
  if (asked[static_cast<std::size_t>(rank)]) return true;
  asked[static_cast<std::size_t>(rank)] = true;
  const auto waits_for_living = [&](const Channel& channel) {
    const std::optional<std::size_t> place = channel.place_of(rank);
    if (!place || channel.announced[*place] <= channel.agreed) return false;
    const auto missing = channel.that_did_not_come(channel.agreed + 1);
    return std::none_of(missing.begin(), missing.end(),
                        [&](int other) { return stands_still(other, lateness, asked); });
  };
  return std::none_of(channels_.begin(), channels_.end(), waits_for_living);
}

std::optional<Verdict> Ledger::late(const Lateness& lateness) const {
  const Position& position = lateness.position;
  if (position.channel >= channels_.size()) return std::nullopt;
  const Channel& channel = channels_[position.channel];
  const auto waiting = channel.that_came(position.number);
  auto missing = channel.that_did_not_come(position.number);
  if (waiting.empty() || (missing.empty() && lateness.waiting_for == WaitFor::ranks)) return std::nullopt;
  const bool all_came = missing.empty();
  const auto is_alive = [&](int rank) { return !lateness.is_silent(rank); };
  if (all_came && std::any_of(waiting.begin(), waiting.end(), is_alive)) return std::nullopt;
  std::erase_if(missing, [&](int rank) {
    std::vector<bool> asked(left_.size());
    return !stands_still(rank, lateness, asked);
  });
  if (missing.empty() && !all_came) return std::nullopt;
  const DecodedSignature signature(lateness.code);
  const Standstill standstill{channel.name, *signature, waiting, missing};
  return Verdict{.position = position,
                 .text = missing.empty() ? stuck_text(standstill, lateness.timeout)
                                         : timeout_text(standstill, lateness.timeout) + elsewhere(lateness, missing)};
}

// Says where those who did not come wait instead, as a rank does that saves a checkpoint alone, and for whom: up to
// those that wait for nobody.
std::string Ledger::elsewhere(const Lateness& lateness, std::vector<int> missing) const {
  std::string text;
  const auto tell = [&](const std::vector<int>& there, const std::string& where, const std::vector<int>& awaited) {
    text += fmt::format("; {} {}{} for {}", rank_list(there), there.size() == 1 ? "waits" : "wait", where,
                        rank_list(awaited));
    for (const int rank : awaited) {
      if (std::find(missing.begin(), missing.end(), rank) == missing.end()) missing.push_back(rank);
    }
  };
  std::vector<bool> told(channels_.size());
  told[lateness.position.channel] = true;
  for (std::size_t next = 0; next < missing.size(); ++next) {
    const int rank = missing[next];
    bool waits = false;
    for (std::size_t index = 0; index < channels_.size(); ++index) {
      const Channel& channel = channels_[index];
      std::vector<int> there = channel.that_came(channel.agreed + 1);
      if (std::find(there.begin(), there.end(), rank) == there.end()) continue;
      waits = true;
      if (told[index]) continue;
      told[index] = true;
      std::erase_if(there, [&](int each) { return std::find(missing.begin(), missing.end(), each) == missing.end(); });
      const DecodedSignature signature(channel.at(0).codes[*channel.place_of(rank)]);
      tell(there, " in " + place_text(channel.name, *signature), channel.that_did_not_come(channel.agreed + 1));
    }
    if (const int awaited = lateness.awaited_by(rank); !waits && awaited >= 0) tell({rank}, "", {awaited});
  }
  return text;
}

}  // namespace tessera::comm
