// NCCL among threads of the test, on the emulated device: the same calls, on the same streams, that move the same
// bytes. Like the real one it trusts its callers: ranks that call different things hang until each has aborted. What
// may go wrong with devices and networks happens when it is told to.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "comm/nccl/nccl_library.hpp"

namespace tessera::comm {

struct FakeFaults {
  int rank = -1;                              // whose; of none
  std::uint64_t launch = 0;                   // from its n-th launch on each communicator on, counted from 1
  bool hangs = false;                         // its device does nothing more
  bool errors = false;                        // its communicator reports an error
  bool refuses = false;                       // its calls fail
  std::chrono::milliseconds computes{0};      // its device does so for so long before that launch
  int polls_until_ready = 0;                  // of every rank's calls: how often each is still in progress when asked
  bool orders_launches = true;                // as NCCL from 2.26 on
  bool shares_devices = true;                 // as NCCL from 2.30 on
  std::chrono::milliseconds starts_after{0};  // of whoever makes an id
  bool splits_late = false;            // a split is in progress at first, and its child is stored by another thread
  std::uint64_t delay_seed = 0;        // each launch of each rank takes 0 to 300 µs more, by seed
  std::atomic<int>* beside = nullptr;  // counts launches that began while another one ran on their device
};

// The counts are those of all communicators, in all of their calls.
struct FakeCounts {
  std::atomic<int> waits = 0;      // calls that went on in the background and were asked for until they had ended
  std::atomic<int> slept = 0;      // those whose thread gave up its processor meanwhile
  std::atomic<int> connected = 0;  // first collectives of at least greeting(), which make the connections for such
  std::atomic<int> late = 0;       // those that were not among a communicator's first two launches
};

class FakeNccl final : public NcclLibrary {
 public:
  explicit FakeNccl(const FakeFaults& faults) : faults_(faults) {}
  ~FakeNccl() override;  // every handle has been destroyed or aborted, or the test ends

  std::string name() const override { return "the tests' NCCL"; }
  bool orders_launches() const override { return faults_.orders_launches; }
  bool shares_devices() const override { return faults_.shares_devices; }
  Bytes greeting() const override { return Bytes(2048); }
  Id unique_id() override;
  NcclState join(Handle& made, const Id& id, const Place& place) override;
  NcclState split(Handle& made, Handle parent, int group, const Place& place) override;
  RankAndSize rank_and_size(Handle handle) override;
  NcclState state(Handle handle) override;
  NcclState finalize(Handle handle) override;
  void destroy(Handle handle) noexcept override;
  void abort(Handle handle) noexcept override;
  void group_begin() override;
  NcclState group_end() override;
  NcclState all_gather(const Call& call, std::byte* data, Bytes part) override;
  NcclState broadcast(const Call& call, std::byte* data, Bytes size, int root) override;
  NcclState send(const Call& call, const std::byte* data, Bytes size, int to) override;
  NcclState receive(const Call& call, std::byte* data, Bytes size, int from) override;
  NcclState reduce_scatter(const Call& call, const Sum& sum) override;
  void* allocate(Bytes size) override;
  void release(void* data) noexcept override;
  void* add_memory(Handle handle, void* data, Bytes size) override;
  void remove_memory(Handle handle, void* memory) noexcept override;

  int open_handles() const { return open_handles_; }
  int known_memory() const { return known_memory_; }
  const FakeCounts& counts() const { return counts_; }

  struct Operation;
  struct Meeting;
  struct Comm;

 private:
  NcclState enqueue(const Call& call, const Operation& operation);
  NcclState launch(const Call& call, std::vector<Operation> operations);
  NcclState answer(Comm& comm) const;
  void note_size(Comm& comm, const std::vector<Operation>& operations);

  const FakeFaults faults_;
  std::mutex mutex_;
  std::map<Id, std::shared_ptr<Meeting>> meetings_;
  std::uint64_t ids_ = 0;
  std::atomic<int> open_handles_ = 0;
  std::atomic<int> known_memory_ = 0;
  FakeCounts counts_;
};

}  // namespace tessera::comm
