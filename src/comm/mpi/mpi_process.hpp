// This process's part in MPI: who it is, values of all ranks at once, and messages. The only user of mpi.h is its
// source.
//
// Thread safety: all_gather() and the end on the thread that launches, everything about messages on one other thread at
// a time; so MPI_THREAD_SERIALIZED is enough.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/introduction.hpp"
#include "tessera/base/bytes.hpp"

namespace tessera::comm {

class MpiProcess final : public Introduction {
 public:
  // MPI can start once in a process's life and end once, so there is one of it: started by the first call, ended with
  // the process. Throws UnavailableError when MPI cannot start. MPI waits in both for the other processes without a
  // deadline of its own: where one takes longer than this, the process says which and ends with an error.
  struct Deadlines {
    std::chrono::milliseconds start;
    std::chrono::milliseconds end;
  };
  static MpiProcess& instance(const Deadlines& deadlines);

  int rank() const final { return rank_; }
  int size() const final { return size_; }
  std::string_view backend_name() const final { return "mpi"; }
  std::vector<std::byte> all_gather(std::span<const std::byte> mine, std::chrono::milliseconds timeout) final;
  MpiProcess* between_hosts() final { return this; }

  // From now on MPI is left as it is when the process ends: some rank may be gone, and MPI's own end would wait for it.
  void abandon() { abandoned_ = true; }

  // Keeps memory that MPI may still read or write until the process ends: of transfers that a failure has cut short.
  void keep(std::shared_ptr<void> memory) { kept_.push_back(std::move(memory)); }

  // Messages of one job, kept apart from those of others. Collective. Virtual, because a build without MPI has callers
  // and no such process.
  class Channel;
  virtual std::unique_ptr<Channel> make_channel(std::chrono::milliseconds timeout);

 private:
  explicit MpiProcess(const Deadlines& deadlines);
  ~MpiProcess() final;

  int rank_ = 0;
  int size_ = 1;
  std::chrono::milliseconds end_timeout_;
  bool abandoned_ = false;
  std::vector<std::shared_ptr<void>> kept_;
  std::vector<std::byte> sent_;  // of all_gather(): MPI may write here even after a deadline
  std::vector<std::byte> gathered_;
};

// Sends and receives that have begun. Memory stays as it is until they have ended: none can be taken back, because MPI
// does not cancel sends, and a connection that meets memory that is gone is broken for later jobs, too.
class MpiProcess::Channel {
 public:
  virtual ~Channel() = default;  // transfers that have not ended go on
  using Transfer = std::size_t;
  virtual Transfer send(int to, int tag, std::span<const std::byte> bytes) = 0;
  virtual Transfer receive(int from, int tag, std::span<std::byte> bytes) = 0;
  virtual bool ended(Transfer transfer) = 0;  // true once; the transfer is forgotten then

  struct Arrival {
    int from;
    std::size_t bytes;
  };
  // A message with this tag that could be received now.
  virtual std::optional<Arrival> probe(int tag) = 0;
};

}  // namespace tessera::comm
