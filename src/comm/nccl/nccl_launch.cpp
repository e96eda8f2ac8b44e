// The launches over NCCL: threads of one process, which find each other in their common memory, and this process as one
// of several, which meet over TCP.
#include "comm/nccl/nccl_launch.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/control/control_room.hpp"
#include "comm/hosts.hpp"
#include "comm/launch_options.hpp"
#include "comm/nccl/nccl_backend.hpp"
#include "comm/patience.hpp"
#include "comm/rank_log.hpp"
#include "comm/rendezvous/join.hpp"
#include "comm/rendezvous/rendezvous_control.hpp"
#include "comm/start.hpp"
#include "tessera/base/error.hpp"
#include "tessera/device/arena.hpp"
#include "tessera/device/cuda.hpp"

namespace tessera::comm {
namespace {

// The library that TESSERA_NCCL names, or the system's. Throws as open_nccl() does.
std::unique_ptr<NcclLibrary> open_chosen_nccl() {
  const char* const path = std::getenv("TESSERA_NCCL");
  return open_nccl(path == nullptr ? "" : path);
}

NcclOptions nccl_options(const LaunchOptions& options) {
  return {.sums = options.sums, .parent = options.nccl_communicator};
}

// A rank finds these where it is.
struct Surroundings {
  Place place{};
  int threads = 1;
};

// The job is left while NCCL is still watched.
template <typename LookRound>
std::exception_ptr run_in(NcclJob& job, RankLog& log, const Body& body, const LookRound& look_round) {
  return run_rank(job.control(), log, body, [&] {
    Surroundings found = look_round();
    return std::make_unique<NcclBackend>(job, found.threads, log, std::move(found.place));
  });
}

// ---- processes ----

std::exception_ptr run_over_nccl(const MeetingPoint& point, const ProcessStart& how) {
  const std::unique_ptr<NcclLibrary> library = open_chosen_nccl();
  void* const parent = how.options.nccl_communicator;
  const Device device = Device::cuda(parent != nullptr ? library->rank_and_size(parent).device
                                                       : point.place.local_rank % cuda_device_count());
  const std::unique_ptr<Control> joined =
      join_rendezvous(join_options(point.place, how.start, how.options.timeout), how.options.timeout);
  Control& control = *joined;
  std::exception_ptr thrown;
  {
    std::optional<Starting> starting(std::in_place, control);
    NcclJob job(*library, control, device, nccl_options(how.options));
    starting.reset();
    say_start(how, fmt::format("{} rank{}, processes of {}, each on a CUDA device (rank {} on {}); {}", how.start.ranks,
                               how.start.ranks == 1 ? "" : "s", how.start.by, how.start.rank, to_string(device),
                               job.in_words()));
    // A program that has a communicator prints as it likes, and may have several ranks in one process.
    const QuietOutput quiet(how.options, parent != nullptr ? 0 : how.start.rank);
    thrown = run_in(job, how.log, how.launched.body, [&] {
      RendezvousIntroduction introduction(control);
      Place place = find_place(introduction, how.options.timeout);
      const int cores = cores_per_rank(introduction, place, how.options.timeout);
      return Surroundings{.place = std::move(place), .threads = how.options.threads.value_or(cores)};
    });
  }
  return outcome_of_process(control, how, thrown);
}

}  // namespace

std::exception_ptr run_nccl_at_rendezvous(const ProcessStart& how) {
  return run_over_nccl(
      meeting_point([](const char* name) { return std::getenv(name); }, how.start, how.options.timeout), how);
}

std::exception_ptr run_nccl_introduced(Introduction& introduction, const ProcessStart& how) {
  return run_over_nccl(meet_over(introduction, how.start, how.options.timeout), how);
}

// ---- the program's own communicator ----

namespace {

// Values of all ranks by a collective of the communicator, of which nothing else is needed afterwards but its parts.
class NcclIntroduction final : public Introduction {
 public:
  NcclIntroduction(std::unique_ptr<NcclLibrary> library, NcclLibrary::Handle handle)
      : library_(std::move(library)),
        handle_(handle),
        known_(library_->rank_and_size(handle)),
        device_(Device::cuda(known_.device)) {}

  int rank() const final { return known_.rank; }
  int size() const final { return known_.ranks; }
  std::string_view backend_name() const final { return "nccl"; }
  std::vector<std::byte> all_gather(std::span<const std::byte> mine, std::chrono::milliseconds timeout) final {
    const auto deadline = std::chrono::steady_clock::now() + timeout;
    const Bytes part(mine.size());
    std::vector<std::byte> all(mine.size() * static_cast<std::size_t>(size()));
    Arena memory(device_, Bytes(all.size()));
    device::CudaQueue queue(device_, StreamPriority::normal);
    queue.copy(memory.data() + mine.size() * static_cast<std::size_t>(rank()), mine.data(), part);
    NcclState state = library_->all_gather({.handle = handle_, .stream = queue.native()}, memory.data(), part);
    device::CudaMark gathered(device_);
    const auto late = [&] { return std::chrono::steady_clock::now() > deadline; };
    for (; state == NcclState::in_progress && !late(); state = library_->state(handle_)) {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    if (state == NcclState::done) queue.record(gathered);
    if (state != NcclState::done || !gathered.wait_on_host(deadline)) {
      library_->abort(handle_);  // ends what runs in the queue, which waits for that
      throw CommunicationError(fmt::format(
          "rank {} waited {:.3g} s for the others of the program's NCCL communicator; do they all call launch()?",
          rank(), in_seconds(timeout)));
    }
    queue.copy(all.data(), memory.data(), Bytes(all.size()));
    queue.synchronize();
    return all;
  }

 private:
  const std::unique_ptr<NcclLibrary> library_;
  const NcclLibrary::Handle handle_;
  const NcclLibrary::RankAndSize known_;
  const Device device_;
};

}  // namespace

std::unique_ptr<Introduction> introduce_over_nccl(void* communicator) {
  return std::make_unique<NcclIntroduction>(open_chosen_nccl(), communicator);
}

// ---- threads ----

RunThread nccl_threads(const LaunchOptions& options, ControlRoom& room) {
  const std::shared_ptr<NcclLibrary> library = open_chosen_nccl();
  const int devices = cuda_device_count();
  if (room.size() > devices && !library->shares_devices()) {
    throw UnavailableError(
        fmt::format("--backend nccl: {} ranks for {} CUDA device{}, and {} gives each rank one of its own (2.30 and "
                    "later share them with NCCL_MULTI_RANK_GPU_ENABLE=1 in the environment); use --ranks {}, or leave "
                    "--backend out",
                    room.size(), devices, devices == 1 ? "" : "s", library->name(), devices));
  }
  return [library, &options](ThreadControl& control, RankLog& log, const Body& body) {
    std::optional<Starting> starting(std::in_place, control);
    NcclJob job(*library, control, Device::cuda(control.rank() % cuda_device_count()), nccl_options(options));
    starting.reset();
    if (control.rank() == 0) {
      say(fmt::format("tessera: {} rank{}, threads of one process, on CUDA devices; {}\n", control.size(),
                      control.size() == 1 ? "" : "s", job.in_words()));
    }
    return run_in(job, log, body, [&options] { return Surroundings{.threads = threads_per_rank(options)}; });
  };
}

}  // namespace tessera::comm
