// Messages between the hosts of a job. What a rank says (its posts, what it has staged, its failure) is written down on
// every other host by one process there, as if the rank stood in that host's shared memory. So data crosses to a host
// once, whatever the number of ranks there, and waits know no hosts. What is said in a communicator is written down by
// one of its group there, so that a process hears of one group per communicator: its own.
//
// A thread of its own makes all calls of MPI, so that messages move while the rank computes.
// Thread safety: everything may be called from any thread. Allocates for each message.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <string_view>
#include <thread>
#include <vector>

#include "comm/introduction.hpp"
#include "comm/members.hpp"
#include "comm/mpi/process_group.hpp"
#include "comm/mpi/process_job.hpp"

namespace tessera::comm {

class Exchange {
 public:
  // The job outlives it.
  Exchange(ProcessJob& job, std::unique_ptr<HostChannel> channel);
  ~Exchange();
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  // From now on, until it is removed, what other hosts' ranks say in this communicator is written down.
  void add(ProcessGroup& group);
  void remove(ProcessGroup& group);

  // This rank's own news, for all other hosts.
  void tell_post(const ProcessGroup& group);
  void tell_staged(const ProcessGroup& group, const Staged& staged);
  // Of the job: its failure, that this rank has left, that it has told the user, and how long ago it gave a sign of
  // life. Whoever cannot even say its news is missed by the others after the deadline.
  void tell_failure(const Position& verdict, std::string_view cause) noexcept;
  enum class Kind : std::uint32_t { post, staged, failure, left, reported, life };
  void tell_news(Kind kind, std::span<const std::byte> rest = {}) noexcept;

  // Returns when everything told has been sent, or after the deadline, at most five seconds.
  void flush() noexcept;

 private:
  using Buffer = std::vector<std::byte>;
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

  static Buffer message_of(const Header& header, std::span<const std::byte> rest);
  void push(Outgoing outgoing);
  void tell(std::span<const int> ranks, const Buffer& message);
  std::vector<int> all_elsewhere(const Members& members) const;
  std::vector<int> one_per_host(const Members& members) const;

  void work();
  bool send_and_receive();
  bool begin_sends();
  bool end_sends();
  bool begin_receives();
  bool advance(int from);
  bool all_ended(std::vector<Transfer>& transfers);
  enum class Handled { done, pieces_begun, not_yet };
  Handled handle(int from, Incoming& incoming);
  Handled handle_in_group(int from, const Header& header, Incoming& incoming);
  void write_post(ProcessGroup& group, int from, std::span<const std::byte> rest);
  void receive_pieces(ProcessGroup& group, int from, Incoming& incoming);
  ProcessGroup* find(std::uint64_t channel);

  struct Unfinished {
    std::vector<Outgoing> sending;
    std::vector<std::deque<Incoming>> receiving;
  };

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

  // Of the thread.
  std::vector<Outgoing> sending_;
  std::vector<std::deque<Incoming>> incoming_;  // by rank
  std::atomic<bool> ending_ = false;
  std::thread thread_;
};

}  // namespace tessera::comm
