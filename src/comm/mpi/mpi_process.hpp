// This process's part in MPI: who it is, values of all ranks at once, and messages. The only user of mpi.h is its
// source.
//
// Thread safety: all_gather() and the end on the thread that launches, everything about messages on one other thread at
// a time; so MPI_THREAD_SERIALIZED is enough.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
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
  // Over a communicator of the program's own (MPI_Comm_c2f), of a duplicate: the program has started MPI, and ends it.
  // One for each communicator, until that is freed. Collective over it. Throws UsageError where it is none, or MPI was
  // not started, or with too few threads.
  static MpiProcess& over(int communicator, const Deadlines& deadlines);
  ~MpiProcess() final;

  int rank() const final { return rank_; }
  int size() const final { return size_; }
  std::string_view backend_name() const final { return "mpi"; }
  std::vector<std::byte> all_gather(std::span<const std::byte> mine, std::chrono::milliseconds timeout) final;
  std::unique_ptr<HostChannel> make_channel(std::chrono::milliseconds timeout) final;

  // From now on MPI is left as it is when the process ends: some rank may be gone, and MPI's own end would wait for it.
  void abandon() { abandoned_ = true; }
  bool abandoned() const { return abandoned_; }

  // Keeps memory that MPI may still read or write until the process ends: of transfers that a failure has cut short.
  void keep(std::shared_ptr<void> memory) { kept_.push_back(std::move(memory)); }

 private:
  explicit MpiProcess(const Deadlines& deadlines);
  MpiProcess(int communicator, const Deadlines& deadlines);
  void stand_in(int communicator);

  int communicator_ = 0;  // MPI_Comm_c2f, which MPI has only once it was started
  bool ends_mpi_;
  int rank_ = 0;
  int size_ = 1;
  std::chrono::milliseconds end_timeout_;
  bool abandoned_ = false;
  std::vector<std::shared_ptr<void>> kept_;
  std::vector<std::byte> sent_;  // of all_gather(): MPI may write here even after a deadline
  std::vector<std::byte> gathered_;
};

}  // namespace tessera::comm
