// Ranks that are threads of this process: their collectives, their backend and their launch. Rank r has CUDA device r
// modulo their number, which several may share, or the CPU.
//
// A rank's stream thread copies from, or sums over, the other ranks' memory directly. On the CPU it blocks until all
// ranks have done theirs; on a CUDA device until all ranks have issued theirs to their queues, whose order does the
// rest: a meeting orders the queues, too. Each rank records a mark before it and waits for its peers' after it. Marks
// are recorded before the host threads meet, so no queue waits for what was not issued: there is no cycle.
#include "comm/local/local_threads.hpp"

#include <algorithm>
#include <exception>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "comm/control/control_room.hpp"
#include "comm/launch_options.hpp"
#include "comm/local/local_group.hpp"
#include "comm/meeting_collectives.hpp"
#include "comm/task_communicator.hpp"
#include "comm/world_backend.hpp"
#include "device/cuda/cuda_queue.hpp"
#include "tessera/device/cuda.hpp"
#include "tessera/kernels/reduce.hpp"

namespace tessera::comm {
namespace {

// A rank in its group. Both outlive its tasks.
struct LocalSeat {
  LocalGroup& group;
  ThreadControl& control;
  int place;
};

// One rank's part of one collective: a Meeting (meeting_collectives.hpp), which reads its peers' memory.
class LocalCall {
 public:
  // queue: null for memory of the CPU, moved by the calling thread.
  LocalCall(const LocalSeat& seat, device::CudaQueue* queue, const Signature& signature)
      : seat_(seat), queue_(queue), signature_(signature) {}

  template <typename Operation>
  void operator()(const Operation& operation) const {
    run_collective(*this, operation);
  }

  int place() const { return seat_.place; }
  int size() const { return seat_.group.size(); }
  const std::byte* data_of(int place, std::size_t segment) const { return seat_.group.data_of(place, segment); }
  std::span<const void*> scratch() const { return seat_.group.scratch(seat_.place); }

  void copy(std::byte* to, const std::byte* from, std::size_t bytes) const {
    queue_ != nullptr ? queue_->copy(to, from, Bytes(bytes)) : kernels::copy_cpu(to, from, Bytes(bytes));
  }
  void sum(const kernels::RankedSum& of) const {
    queue_ != nullptr ? kernels::ranked_sum_cuda(queue_->native(), of) : kernels::ranked_sum_cpu(of);
  }

  // Data moves after the peers' memory is ready; marks say where this rank has read it.
  template <typename Move>
  void meet(const std::byte* data, const Move& move) const {
    const Claim claim(seat_.group.busy(seat_.place), seat_.control, seat_.group.name());
    record(&LocalMarks::ready);
    seat_.group.enter(seat_.place, {.signature = signature_, .data = data});
    try {
      wait_for_peers(&LocalMarks::ready);
      move();
      record(&LocalMarks::moved);
    } catch (...) {
      seat_.group.fail(seat_.place, std::current_exception());
      throw;
    }
    seat_.group.finish(seat_.place);
    wait_for_peers(&LocalMarks::moved);
  }
  void regroup() const {
    record(&LocalMarks::moved);
    seat_.group.regroup(seat_.place);
    wait_for_peers(&LocalMarks::moved);
  }

 private:
  void record(device::CudaMark LocalMarks::*mark) const {
    if (queue_ != nullptr) queue_->record(seat_.group.marks(seat_.place).*mark);
  }
  void wait_for_peers(device::CudaMark LocalMarks::*mark) const {
    if (queue_ == nullptr) return;
    for_each_peer(seat_.place, size(), [&](int peer) { queue_->wait(seat_.group.marks(peer).*mark); });
  }

  LocalSeat seat_;
  device::CudaQueue* queue_;
  Signature signature_;
};

// The groups of all communicators, each made by whichever of its ranks asks first. They live as long as the job.
class LocalGroups {
 public:
  explicit LocalGroups(ControlRoom& room) : room_(room) {}

  LocalGroup& of(const Identity& identity) {
    const auto lock = room_.lock();
    auto& group = groups_[identity.channel];
    if (!group) group = std::make_unique<LocalGroup>(room_, identity.channel, identity.name, identity.members.ranks);
    return *group;
  }

 private:
  ControlRoom& room_;
  std::map<std::size_t, std::unique_ptr<LocalGroup>> groups_;  // by channel
};

class LocalBackend final : public World::Backend {
 public:
  LocalBackend(ThreadControl& control, LocalGroups& groups, const Facts& facts, RankLog& log)
      : Backend(facts, control, log), control_(control), groups_(groups) {}

  std::unique_ptr<Communicator> make_communicator(std::string name, const CommunicatorUse& use) final {
    Control::Opened opened = control_.open(name, use.group, "");
    LocalGroup& group = groups_.of(opened);
    if (facts().device.kind() == DeviceKind::cuda) group.make_marks(opened.members.place, facts().device);
    const LocalSeat seat{.group = group, .control = control_, .place = opened.members.place};
    return make_task_communicator(
        std::move(opened.members), group.name(), [seat](Stream& stream, const Signature& signature) {
          const bool on_device = stream.device().kind() == DeviceKind::cuda;
          return LocalCall(seat, on_device ? &device::cuda_queue(stream) : nullptr, signature);
        });
  }

 private:
  ThreadControl& control_;
  LocalGroups& groups_;
};

}  // namespace

RunThread local_threads(const LaunchOptions& options, ControlRoom& room) {
  const DeviceKind kind = resolve(options.device);
  if (kind == DeviceKind::cuda) device::share_memory(std::min(room.size(), cuda_device_count()));
  const auto groups = std::make_shared<LocalGroups>(room);
  return [groups, kind, threads = threads_per_rank(options)](ThreadControl& control, RankLog& log, const Body& body) {
    return run_rank(control, log, body, [&] {
      const bool on_cpu = kind == DeviceKind::cpu;
      const World::Backend::Facts facts{
          .name = "local",
          .device = on_cpu ? Device::cpu() : Device::cuda(control.rank() % cuda_device_count()),
          .threads = threads};
      return std::make_unique<LocalBackend>(control, *groups, facts, log);
    });
  };
}

}  // namespace tessera::comm
