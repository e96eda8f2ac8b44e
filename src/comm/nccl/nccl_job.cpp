// Making communicators and memory, and watching them.
#include "comm/nccl/nccl_job.hpp"

#include <fmt/format.h>
#include <pthread.h>

#include <chrono>
#include <cstring>
#include <string_view>

#include "comm/introduction.hpp"
#include "comm/patience.hpp"
#include "device/device_memory.hpp"
#include "tessera/base/error.hpp"

namespace tessera::comm {
namespace {

constexpr std::chrono::milliseconds watch_interval{10};

NcclLibrary::Id id_of(std::string_view blob) {
  NcclLibrary::Id id;
  if (blob.size() != id.size()) {
    throw InternalError(
        fmt::format("a group's first rank gave {} bytes as NCCL's id, which has {}", blob.size(), id.size()));
  }
  std::memcpy(id.data(), blob.data(), id.size());
  return id;
}

std::string blob_of(const NcclLibrary::Id& id) { return {id.data(), id.size()}; }

}  // namespace

// An arena of NCCL's memory.
class NcclMemory final : public device::DeviceMemory, private Pinned {
 public:
  NcclMemory(NcclJob& job, void* data, Bytes size) : job_(job), data_(data) {
    device::CudaQueue queue(job.device(), StreamPriority::normal);
    queue.fill(data, 0, size);
    queue.synchronize();
    const std::lock_guard lock(job.mutex_);
    job.arenas_.emplace_back(data, size);
    for (NcclGroup* const group : job.groups_) group->add_memory(data, size);
  }
  ~NcclMemory() override {
    {
      const std::lock_guard lock(job_.mutex_);
      for (NcclGroup* const group : job_.groups_) group->remove_memory(data_);
      std::erase_if(job_.arenas_, [&](const auto& arena) { return arena.first == data_; });
    }
    job_.parts_.library.release(data_);
  }

  std::byte* data() override { return static_cast<std::byte*>(data_); }

 private:
  NcclJob& job_;
  void* data_;
};

Starting::Starting(Control& control)
    : thread_([&control](const std::stop_token& stop) {
        std::mutex mutex;
        std::condition_variable_any stopped;
        const auto end = SignOfLife::Clock::now() + start_timeout(control.timeout());
        for (std::unique_lock lock(mutex); !stop.stop_requested() && SignOfLife::Clock::now() < end;) {
          control.note_progress();
          stopped.wait_for(lock, stop, look_interval(control.timeout()), [] { return false; });
        }
      }) {}

// A program that has made a communicator has also made NCCL read its environment, without the variable that open_nccl()
// sets later: whether NCCL keeps the order is then unknown.
NcclJob::NcclJob(NcclLibrary& library, Control& control, Device device, NcclOptions options)
    : order_(control, device, options.parent != nullptr || !library.orders_launches()),
      parts_{
          .library = library, .control = control, .order = order_, .job = *this, .device = device, .options = options},
      watcher_([this](const std::stop_token& stop) { watch(stop); }) {}

void NcclJob::begin(NcclGroup& group) {
  const std::lock_guard lock(mutex_);
  for (const auto& [data, size] : arenas_) group.add_memory(data, size);
  groups_.push_back(&group);
}

void NcclJob::end(NcclGroup& group) {
  const std::lock_guard lock(mutex_);
  std::erase(groups_, &group);
}

// Taking memory of the device, or giving it back, may wait for all that runs there, also for a peer's collective that
// waits for this rank, where ranks share a device. So no rank goes on, in whichever group, before all have taken and
// given back what connecting needs.
//
// The first member of each group makes its id, unless the program's communicator is split.
std::shared_ptr<NcclGroup> NcclJob::make_group(const std::string& name, const CommunicatorUse& use) {
  const bool is_split = parts_.options.parent != nullptr;
  if (use.carries_messages && order_.by_events()) {
    throw UsageError(fmt::format(
        "{}: {}, so launches are kept in one order by events, in which a message that is awaited holds up what its "
        "sender waits for: {}",
        name, is_split ? "NCCL has a communicator of the program's own" : "this NCCL keeps no order of launches itself",
        is_split ? "start the job without nccl_communicator" : "a pipeline takes NCCL 2.26 or later"));
  }
  const bool is_first = use.group ? use.group->place() == 0 : control().rank() == 0;
  std::string id;
  if (is_first && !is_split) {
    const Starting starting(control());
    id = blob_of(parts_.library.unique_id());
  }
  Control::Opened opened = control().open(name, use.group, id);
  if (!all_connected_) all_connected_ = control().open("all are connected", {}, "").channel;
  const auto first = static_cast<std::size_t>(opened.members.ranks.front());
  std::optional<Starting> starting(std::in_place, control());
  auto made = std::make_shared<NcclGroup>(parts_, std::move(opened), use,
                                          is_split ? NcclLibrary::Id{} : id_of(opened.blobs[first]));
  starting.reset();
  control().exchange(*all_connected_, signature_of_creation(made->name()), "");
  return made;
}

Arena NcclJob::make_arena(Bytes size) {
  if (size == Bytes(0)) return Arena(device(), size);
  const Bytes pages = Arena::whole_pages(device(), size);
  void* const data = parts_.library.allocate(pages);
  if (data == nullptr) return Arena(device(), size);
  return Arena(pages, std::make_unique<NcclMemory>(*this, data, pages));
}

// Allocates nothing while nothing changes.
void NcclJob::watch(const std::stop_token& stop) noexcept {
  ::pthread_setname_np(::pthread_self(), "nccl");
  std::unique_lock lock(mutex_);
  while (!stop.stop_requested()) {
    for (NcclGroup* const group : groups_) group->watch();
    stopped_.wait_for(lock, stop, watch_interval, [] { return false; });
  }
}

std::string NcclJob::in_words() const {
  return fmt::format("{}, launches in {}, sums {}", parts_.library.name(),
                     order_.by_events() ? "one order kept by events" : "NCCL's implicit order",
                     parts_.options.sums == SumChoice::ranked ? "in rank order" : "by NCCL");
}

}  // namespace tessera::comm
