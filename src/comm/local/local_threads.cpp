// The local backend and its launch: a rank is a thread of this process. Rank r has CUDA device r modulo their number,
// which several may share, or the CPU.
#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "comm/control/thread_control.hpp"
#include "comm/launch.hpp"
#include "comm/launch_options.hpp"
#include "comm/local/local_group.hpp"
#include "comm/world_backend.hpp"
#include "device/cuda/cuda_queue.hpp"
#include "tessera/device/cuda.hpp"

namespace tessera::comm {
namespace {

// The groups of all communicators, each made by whichever of its ranks asks first. They live as long as the job.
class LocalGroups {
 public:
  explicit LocalGroups(ThreadControlRoom& room) : room_(room) {}

  LocalGroup& of(std::size_t channel, const std::string& name, const std::vector<int>& ranks) {
    const auto lock = room_.lock();
    auto& group = groups_[channel];
    if (!group) group = std::make_unique<LocalGroup>(room_, channel, name, ranks);
    return *group;
  }

 private:
  ThreadControlRoom& room_;
  std::map<std::size_t, std::unique_ptr<LocalGroup>> groups_;  // by channel
};

class LocalBackend final : public World::Backend {
 public:
  LocalBackend(ThreadControl& control, LocalGroups& groups, const Facts& facts, RankLog& log)
      : Backend(facts, control, log), control_(control), groups_(groups) {}

  std::unique_ptr<Communicator> make_communicator(std::string name, const CommunicatorUse& use) final {
    Control::Opened opened = control_.open(name, use.group, "");
    LocalGroup& group = groups_.of(opened.channel, communicator_name(name, use.group), opened.members.ranks);
    if (facts().device.kind() == DeviceKind::cuda) group.make_marks(opened.members.place, facts().device);
    return make_local_communicator(std::move(opened.members), group, control_);
  }

 private:
  ThreadControl& control_;
  LocalGroups& groups_;
};

}  // namespace

RunThread local_threads(const LaunchOptions& options, ThreadControlRoom& room) {
  const DeviceKind kind = resolve(options.device);
  if (kind == DeviceKind::cuda) device::share_memory(std::min(room.size(), cuda_device_count()));
  const auto groups = std::make_shared<LocalGroups>(room);
  return [groups, kind, threads = threads_per_rank(options)](ThreadControl& control, RankLog& log, const Body& body) {
    return run_rank(control, log, body, [&] {
      const int rank = control.rank();
      const World::Backend::Facts facts{
          .name = "local",
          .rank = rank,
          .size = control.size(),
          .device = kind == DeviceKind::cpu ? Device::cpu() : Device::cuda(rank % cuda_device_count()),
          .threads = threads,
          .timeout = control.timeout()};
      return std::make_unique<LocalBackend>(control, *groups, facts, log);
    });
  };
}

}  // namespace tessera::comm
