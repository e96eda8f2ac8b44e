// The job's state in shared memory, and its ends.
#include "comm/mpi/process_job.hpp"

#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <thread>
#include <utility>

#include "comm/mpi/exchange.hpp"
#include "comm/mpi/shared_text.hpp"
#include "comm/rank_error.hpp"
#include "device/device_memory.hpp"
#include "tessera/base/error.hpp"

namespace tessera::comm {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// Processes that are started together do not come together: the last one may still be loading.
constexpr milliseconds least_start_timeout{60'000};
constexpr milliseconds poll{2};  // of states that are waited for at the end of a job

// What every process tells every other one before they share anything.
struct Introduction {
  std::array<char, 512> host;
  cpu_set_t cores;
};
struct Files {
  SharedFile job;
  SharedFile creation;
};

template <typename Value>
std::vector<Value> all_values(MpiProcess& process, const Value& mine, milliseconds timeout) {
  const std::vector<std::byte> bytes = process.all_gather(std::as_bytes(std::span(&mine, 1)), timeout);
  std::vector<Value> values(bytes.size() / sizeof(Value));
  std::memcpy(static_cast<void*>(values.data()), bytes.data(), bytes.size());
  return values;
}

Introduction introduction() {
  Introduction mine{};
  const std::string key = host_key();
  std::memcpy(mine.host.data(), key.data(), std::min(key.size(), mine.host.size() - 1));
  CPU_ZERO(&mine.cores);
  ::sched_getaffinity(0, sizeof(mine.cores), &mine.cores);
  return mine;
}

// A rank that the launcher has bound owns its cores; ranks that share cores divide them.
int divide_cores(const std::vector<Introduction>& all, const Place& place) {
  cpu_set_t together;
  CPU_ZERO(&together);
  for (const int rank : place.here) CPU_OR(&together, &together, &all[static_cast<std::size_t>(rank)].cores);
  const int mine = CPU_COUNT(&all[static_cast<std::size_t>(place.rank)].cores);
  const int share = CPU_COUNT(&together) / static_cast<int>(place.here.size());
  return std::max(1, std::min(mine, share));
}

}  // namespace

// An arena of this rank's, known to its peers while it lives.
class SharedArena final : public device::DeviceMemory {
 public:
  SharedArena(ProcessJob& job, Bytes size) : job_(job), memory_(SharedMemory::make("tessera-arena", size)) {
    reserve();
    const std::lock_guard lock(job_.arena_mutex_);
    slot_ = job_.free_arena();
    job_.add_arena(slot_, memory_);
  }
  ~SharedArena() override {
    const std::lock_guard lock(job_.arena_mutex_);
    job_.remove_arena(slot_);
  }
  SharedArena(const SharedArena&) = delete;
  SharedArena& operator=(const SharedArena&) = delete;

  std::byte* data() override { return memory_.data(); }

 private:
  // Every page exists from now on: what the machine does not have is an error here, not a signal later.
  void reserve() {
    memory_.reserve();
    for (std::size_t offset = 0; offset < memory_.size().count(); offset += Arena::page.count()) {
      static_cast<volatile std::byte*>(memory_.data())[offset] = std::byte{0};
    }
  }

  ProcessJob& job_;
  SharedMemory memory_;
  std::size_t slot_ = 0;
};

ProcessJob::ProcessJob(MpiProcess& process, milliseconds timeout) : timeout_(timeout), own_(shared::most_arenas) {
  const milliseconds start_timeout = std::max(timeout, least_start_timeout);
  const std::vector<Introduction> all = all_values(process, introduction(), start_timeout);
  std::vector<std::string> keys;
  for (const Introduction& each : all) keys.emplace_back(each.host.data());
  place_ = place_of(process.rank(), keys);
  cores_per_rank_ = divide_cores(all, place_);
  for (int rank = 0; rank < place_.ranks; ++rank) peers_.emplace_back(shared::most_arenas);
  meet(process, start_timeout);
  if (place_.hosts > 1) exchange_ = std::make_unique<Exchange>(*this, process, process.make_channel(start_timeout));
}

// The rank that leads this host makes the memory; the others open it while it waits for them.
void ProcessJob::meet(MpiProcess& process, milliseconds timeout) {
  if (place_.leads()) {
    memory_ = SharedMemory::make("tessera-job", shared::job_size(place_.ranks));
    creation_memory_ = SharedMemory::make("tessera-creation", shared::GroupLayout(place_.ranks).size());
  }
  const Files mine{memory_.file(), creation_memory_.file()};
  const Files leaders = all_values(process, mine, timeout)[static_cast<std::size_t>(place_.leader())];
  if (!place_.leads()) {
    memory_ = SharedMemory::open(leaders.job);
    creation_memory_ = SharedMemory::open(leaders.creation);
  }
  member(place_.rank).process = ::getpid();
  all_values(process, std::byte{1}, timeout);
}

ProcessJob::~ProcessJob() = default;

void ProcessJob::abort(std::string_view cause, std::exception_ptr exception) noexcept {
  {
    const std::lock_guard lock(failure_mutex_);
    if (!write_text(shared().failure, place_.rank, cause)) return;
    exception_ = std::move(exception);
  }
  if (exchange_) exchange_->tell_failure(cause);
}

void ProcessJob::note_failure(int rank, std::string_view cause) noexcept { write_text(shared().failure, rank, cause); }

const JobFailure* ProcessJob::failure() const noexcept {
  if (!failed_.load(std::memory_order_acquire)) {
    if (!is_there(shared().failure)) return nullptr;
    publish_failure();
  }
  return &failure_;
}

void ProcessJob::publish_failure() const noexcept {
  const std::lock_guard lock(failure_mutex_);
  if (failed_.load(std::memory_order_relaxed)) return;
  record(failure_, shared().failure.rank, shared().failure.characters.data(), exception_);
  failed_.store(true, std::memory_order_release);
}

void ProcessJob::note_left(int rank) noexcept {
  member(rank).left.store(1, std::memory_order_release);
  shared().leavers.fetch_add(1, std::memory_order_acq_rel);
}

void ProcessJob::leave() noexcept {
  note_left(place_.rank);
  if (exchange_) exchange_->tell_left();
  const auto everybody = static_cast<std::uint32_t>(place_.ranks);
  while (failure() == nullptr && shared().leavers.load(std::memory_order_acquire) < everybody) {
    std::this_thread::sleep_for(poll);
  }
  if (exchange_) exchange_->flush();
}

void ProcessJob::note_reported() noexcept { shared().reported.store(1, std::memory_order_release); }

void ProcessJob::say_reported() noexcept {
  note_reported();
  if (!exchange_) return;
  exchange_->tell_reported();
  exchange_->flush();
}

bool ProcessJob::wait_for_report() const noexcept {
  const auto deadline = steady_clock::now() + std::min<milliseconds>(timeout_, std::chrono::seconds(5));
  while (shared().reported.load(std::memory_order_acquire) == 0) {
    if (steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(poll);
  }
  return true;
}

Arena ProcessJob::make_arena(Bytes size) {
  if (size == Bytes(0)) return Arena(Device::cpu(), size);
  const Bytes pages = Arena::whole_pages(Device::cpu(), size);
  return Arena(pages, std::make_unique<SharedArena>(*this, pages));
}

std::size_t ProcessJob::free_arena() const {
  for (std::size_t slot = 0; slot < own_.size(); ++slot) {
    if (own_[slot].data == nullptr) return slot;
  }
  throw UsageError(
      fmt::format("rank {} has {} arenas, which is the most that it can share with the ranks of its host: "
                  "end models that are no longer used",
                  place_.rank, own_.size()));
}

void ProcessJob::add_arena(std::size_t slot, const SharedMemory& memory) {
  forget_stale_arenas();
  own_[slot] = {.data = memory.data(), .size = memory.size()};
  shared::ArenaEntry& entry = member(place_.rank).arenas[slot];
  ++entry.generation;
  entry.size = memory.size().count();
  entry.descriptor = memory.file().descriptor;
}

void ProcessJob::remove_arena(std::size_t slot) noexcept {
  own_[slot] = {};
  member(place_.rank).arenas[slot].size = 0;
}

ProcessJob::Reference ProcessJob::locate(const void* data, Bytes size) const {
  const auto* const begin = static_cast<const std::byte*>(data);
  const std::lock_guard lock(arena_mutex_);
  for (std::size_t slot = 0; slot < own_.size(); ++slot) {
    const Own& own = own_[slot];
    if (own.data == nullptr || begin < own.data || begin >= own.data + own.size.count()) continue;
    const auto offset = static_cast<std::uint64_t>(begin - own.data);
    if (size.count() > own.size.count() - offset) continue;
    return {.arena = static_cast<std::int32_t>(slot), .offset = offset};
  }
  return {};
}

const std::byte* ProcessJob::address(int rank, Reference reference) {
  const auto slot = static_cast<std::size_t>(reference.arena);
  const shared::ArenaEntry& entry = member(rank).arenas[slot];
  const std::lock_guard lock(arena_mutex_);
  Mapped& mapped = peers_[static_cast<std::size_t>(rank)][slot];
  if (mapped.generation != entry.generation) {
    forget_stale_arenas();
    mapped.memory =
        SharedMemory::open({.owner = member(rank).process, .descriptor = entry.descriptor, .size = Bytes(entry.size)});
    mapped.generation = entry.generation;
  }
  return mapped.memory.data() + reference.offset;
}

// A peer's arena that is gone is memory as long as it is mapped here.
void ProcessJob::forget_stale_arenas() {
  for (std::size_t rank = 0; rank < peers_.size(); ++rank) {
    for (std::size_t slot = 0; slot < peers_[rank].size(); ++slot) {
      Mapped& mapped = peers_[rank][slot];
      const shared::ArenaEntry& entry = member(static_cast<int>(rank)).arenas[slot];
      if (mapped.generation != 0 && (entry.size == 0 || entry.generation != mapped.generation)) mapped = Mapped{};
    }
  }
}

}  // namespace tessera::comm
