// Which collectives each rank has announced, and what follows from it: agreement, disagreement, ranks that others wait
// for. Pure bookkeeping, for a room of threads or of processes that meet over TCP (control_room.hpp), and for processes
// that share memory (processes/process_group.hpp).
//
// A channel is a communicator's place in the job; 0 is the one in which the others are made. It has members, ranks of
// the job: all of them, or one group of a partition, of which each group has a channel. On each, every member's n-th
// announcement is compared with the other members' n-th: n is its position, from 1.
// Thread safety: one thread at a time. Allocation: none, once as many announcements as ever have been open at once, and
// the longest of the channel was one of them.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "comm/job_failure.hpp"
#include "comm/signature.hpp"

namespace tessera::comm {

// Why the job ends: of the collective there, whose ranks all get this text.
struct Verdict {
  Position position;
  std::string text;
};

class Ledger {
 public:
  explicit Ledger(int ranks);

  // A channel more, of the communicator `name`. members: ranks of the job by place; default: all of them.
  void open(std::string name, std::vector<int> members = {});
  std::size_t channels() const { return channels_.size(); }
  const std::vector<int>& members(std::size_t channel) const { return channels_.at(channel).members; }
  // Throws DataError for a channel that is not open, and for a rank that is none of its members.
  std::size_t place(std::size_t channel, int rank) const;

  // The rank's next announcement, its signature encoded. With the last member's the position is agreed, or a verdict.
  // Throws as place(), and DataError for a rank that is too far ahead of the others.
  std::optional<Verdict> announce(int rank, std::size_t channel, std::string_view code);
  // The rank will announce nothing more, because it has left, or its process has ended.
  enum class Leaving { left, ended };
  std::optional<Verdict> leave(int rank, Leaving how = Leaving::left);
  // A rank has waited for `timeout` there, in the collective with this code. None when all have come, unless it waits
  // for the collective's end, and none while those who have not give signs of life. Throws DataError for a code that is
  // none.
  enum class WaitFor { ranks, end };
  struct Lateness {
    Position position;
    std::string_view code;
    std::chrono::milliseconds timeout;
    WaitFor waiting_for;
    // Whether the rank gives no sign of life itself.
    std::function<bool(int rank)> is_silent = [](int) { return true; };
    // For whom the rank waits, where no channel here tells it; -1: nobody.
    std::function<int(int rank)> awaited_by = [](int) { return -1; };
  };
  std::optional<Verdict> late(const Lateness& lateness) const;

  // Announcements that all members have made, and equally; constant once there was a verdict.
  std::uint64_t agreed(std::size_t channel) const { return channels_.at(channel).agreed; }
  std::uint64_t announced(std::size_t channel, int rank) const {
    return channels_.at(channel).announced[place(channel, rank)];
  }
  bool has_left(int rank) const { return left_.at(static_cast<std::size_t>(rank)); }

 private:
  struct Entry {
    std::vector<std::string> codes;  // by place
    std::size_t came = 0;
  };
  struct Channel {
    std::string name;
    std::vector<int> members;              // by place
    std::vector<std::uint64_t> announced;  // by place
    std::uint64_t agreed = 0;
    // Positions agreed + 1 and on, from `first` round; entries keep their memory for the next.
    std::vector<Entry> ring;
    std::size_t first = 0;
    std::size_t open = 0;
    std::size_t longest = 0;  // code, for which every entry has room: each comes round to every entry some time

    Entry& at(std::size_t ahead) { return ring[(first + ahead) % ring.size()]; }
    const Entry& at(std::size_t ahead) const { return ring[(first + ahead) % ring.size()]; }
    std::optional<std::size_t> place_of(int rank) const;
    // Both return members, ascending: those whose last announcement is this one or a later one, and the others.
    std::vector<int> that_came(std::uint64_t number) const;
    std::vector<int> that_did_not_come(std::uint64_t number) const;
  };

  Entry& entry_at(Channel& channel, std::uint64_t number);
  void make_room(Channel& channel, std::size_t code_size);
  const std::string& code_at(const Channel& channel, std::size_t ahead) const;
  std::optional<Verdict> compare(std::size_t channel);
  std::optional<Verdict> awaited_leaver(std::size_t channel) const;
  std::string elsewhere(const Lateness& lateness, std::vector<int> missing) const;
  bool stands_still(int rank, const Lateness& lateness, std::vector<bool>& asked) const;

  int ranks_;
  std::vector<Channel> channels_;
  std::vector<bool> left_;
  bool anyone_left_ = false;
  Leaving leaving_ = Leaving::left;  // the last of them
};

}  // namespace tessera::comm
