// The NCCL communicators of one rank share an NcclJob: the library, the way to the other ranks, the order of launches,
// and a thread that watches over what the device has not ended.
//
// Thread safety: all of it, but that communicators are made by the rank's own thread.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/nccl/nccl_group.hpp"
#include "comm/nccl/nccl_library.hpp"
#include "comm/pinned.hpp"
#include "tessera/comm/world.hpp"
#include "tessera/plan/strategy.hpp"

namespace tessera::comm {

// While it lives, and up to start_timeout(), this rank counts as one that makes progress: how long a device and NCCL
// take to start has nothing to do with the job's timeout.
class Starting : Pinned {
 public:
  explicit Starting(Control& control);

 private:
  std::jthread thread_;
};

class NcclJob : Pinned {
 public:
  // Library and control outlive the job, and all streams that communicators run on end before it.
  NcclJob(NcclLibrary& library, Control& control, Device device, NcclOptions options);

  Control& control() { return parts_.control; }
  Device device() const { return parts_.device; }

  // Collective over all ranks: a communicator over all of them, or over this rank's group of several, connected.
  std::shared_ptr<NcclGroup> make_group(const std::string& name, const CommunicatorUse& use = {});
  CollectiveStaging staging() const {
    return parts_.options.sums == SumChoice::ranked ? CollectiveStaging::parts : CollectiveStaging::results;
  }

  // The group is watched from now on; nobody looks at it any more. The watcher never owns one: it would have to end it,
  // and that may wait for what only the watcher can abort.
  void begin(NcclGroup& group);
  void end(NcclGroup& group);

  // Memory that NCCL prefers, where it has such, and that all communicators know while it lives; zero-filled.
  Arena make_arena(Bytes size);

  // For the user, at the start: `NCCL 2.28.9 (libnccl.so.2), launches in NCCL's implicit order, sums in rank order`
  std::string in_words() const;

 private:
  friend class NcclMemory;
  void watch(const std::stop_token& stop) noexcept;

  LaunchOrder order_;
  const NcclParts parts_;
  std::optional<std::size_t> all_connected_;  // the channel on which ranks say so, once it is needed

  std::mutex mutex_;
  std::condition_variable_any stopped_;
  std::vector<NcclGroup*> groups_;
  std::vector<std::pair<void*, Bytes>> arenas_;
  std::jthread watcher_;  // last: it uses all of the above, and ends first
};

}  // namespace tessera::comm
