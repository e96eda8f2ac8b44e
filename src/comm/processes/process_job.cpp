// The job's state in shared memory, and its ends.
#include "comm/processes/process_job.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <optional>
#include <thread>
#include <utility>

#include "comm/collective_errors.hpp"
#include "comm/pinned.hpp"
#include "comm/processes/exchange.hpp"
#include "device/device_memory.hpp"
#include "tessera/base/error.hpp"

namespace tessera::comm {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds poll{2};                 // of states that are waited for at the end of a job
constexpr milliseconds longest_writing{1'000};  // of a failure

}  // namespace

// An arena of this rank's, known to its peers while it lives.
class SharedArena final : public device::DeviceMemory, private Pinned {
 public:
  SharedArena(ProcessJob& job, Bytes size) : job_(job), memory_(SharedMemory::make("tessera-arena", size)) {
    memory_.reserve();
    const std::lock_guard lock(job_.arena_mutex_);
    job_.forget_stale_arenas();
    slot_ = job_.free_arena();
    job_.own_[slot_] = &memory_;
    ++entry().generation;
    entry().size = memory_.size().count();
    entry().descriptor = memory_.file().descriptor;
  }
  ~SharedArena() override {
    const std::lock_guard lock(job_.arena_mutex_);
    job_.own_[slot_] = nullptr;
    entry().size = 0;
  }

  std::byte* data() override { return memory_.data(); }

 private:
  shared::ArenaEntry& entry() { return job_.member(job_.rank()).arenas[slot_]; }

  ProcessJob& job_;
  SharedMemory memory_;
  std::size_t slot_ = 0;
};

ProcessJob::ProcessJob(Introduction& introduction, milliseconds timeout)
    : backend_name_(introduction.backend_name()), timeout_(timeout), own_(shared::most_arenas) {
  const milliseconds patience = start_timeout(timeout);
  place_ = find_place(introduction, patience);
  std::unique_ptr<HostChannel> channel = place_.hosts > 1 ? introduction.make_channel(patience) : nullptr;
  if (place_.hosts > 1 && channel == nullptr) {
    throw UnavailableError(
        fmt::format("the ranks are on {} hosts, between which only MPI carries data of ranks on the CPU: start them "
                    "with mpirun -n {} "
                    "PROGRAM (or srun --mpi=pmix), in a build with MPI",
                    place_.hosts, place_.ranks));
  }
  cores_per_rank_ = comm::cores_per_rank(introduction, place_, patience);
  for (int rank = 0; rank < place_.ranks; ++rank) peers_.emplace_back(shared::most_arenas);
  memory_ = share(introduction, "tessera-job", shared::job_size(place_.ranks), patience);
  creation_memory_ = share(introduction, "tessera-creation", shared::GroupLayout(place_.ranks).size(), patience);
  member(place_.rank).process = ::getpid();
  all_values(introduction, std::byte{1}, patience);
  answers_ = std::vector<SignOfLife>(static_cast<std::size_t>(place_.ranks));
  if (channel) exchange_ = make_exchange(*this, std::move(channel));
}

// The rank that leads this host makes the memory; the others open it while it waits for them.
SharedMemory ProcessJob::share(Introduction& introduction, const char* name, Bytes size, milliseconds timeout) const {
  SharedMemory memory = place_.leads() ? SharedMemory::make(name, size) : SharedMemory();
  const SharedFile file = all_values(introduction, memory.file(), timeout)[static_cast<std::size_t>(place_.leader())];
  if (!place_.leads()) memory = SharedMemory::open(file);
  return memory;
}

ProcessJob::~ProcessJob() = default;

void ProcessJob::abort(std::string_view cause, std::exception_ptr exception) noexcept {
  fail({}, cause, std::move(exception));
}

void ProcessJob::abort(const Verdict& verdict) noexcept {
  fail(verdict.position, verdict.text, std::make_exception_ptr(CommunicationError(verdict.text)));
}

// Another's may be first and never come, when its process is killed while it writes: this rank then keeps its own.
void ProcessJob::fail(const Position& verdict, std::string_view cause, std::exception_ptr exception) noexcept {
  const auto writing = [this] { return shared().failure.state.load() == shared::Failure::writing; };
  {
    const std::lock_guard lock(failure_mutex_);
    if (!note_failure(place_.rank, verdict, cause)) {
      for (const auto end = steady_clock::now() + longest_writing; writing() && steady_clock::now() < end;) {
        std::this_thread::sleep_for(poll);
      }
      if (writing()) failure_.record(place_.rank, cause, std::move(exception), verdict);
      return;
    }
    exception_ = std::move(exception);
  }
  if (exchange_) exchange_->tell_failure(verdict, cause);
}

bool ProcessJob::note_failure(int rank, const Position& verdict, std::string_view cause) noexcept {
  using shared::Failure;
  Failure& failure = shared().failure;
  std::uint32_t expected = Failure::none;
  if (!failure.state.compare_exchange_strong(expected, Failure::writing, std::memory_order_acq_rel)) return false;
  failure.rank = rank;
  failure.verdict = verdict;
  const std::size_t length = std::min(cause.size(), failure.cause.size() - 1);
  std::copy_n(cause.begin(), length, failure.cause.begin());
  failure.cause[length] = '\0';
  failure.state.store(Failure::there, std::memory_order_release);
  return true;
}

const JobFailure* ProcessJob::failure() const noexcept {
  const shared::Failure& failure = shared().failure;
  if (failure_.get() == nullptr && failure.state.load(std::memory_order_acquire) == shared::Failure::there) {
    const std::lock_guard lock(failure_mutex_);
    failure_.record(failure.rank, failure.cause.data(), exception_, failure.verdict);
  }
  return failure_.get();
}

// To other hosts not for every sign.
void ProcessJob::show_life(SignOfLife::Clock::time_point at) noexcept {
  note_life(place_.rank, at);
  if (!exchange_) return;
  const auto ticks = at.time_since_epoch().count();
  auto told = life_told_.load();
  if (SignOfLife::Clock::duration(ticks - told) < look_interval(timeout_)) return;
  if (!life_told_.compare_exchange_strong(told, ticks)) return;
  const SignOfLife::Clock::duration ago = SignOfLife::Clock::now() - at;  // hosts' clocks have nothing in common
  exchange_->tell_news(Exchange::Kind::life, std::as_bytes(std::span(&ago, 1)));
}

void ProcessJob::note_progress() noexcept { show_life(SignOfLife::Clock::now()); }

namespace {

// The system says this of a process: its state, and the processor time that it has used, in ticks.
struct Activity {
  char state = ' ';
  std::uint64_t ticks = 0;
};
// Allocates nothing: ranks that wait for each other ask for it.
std::optional<Activity> activity_of(pid_t process) {
  std::array<char, 32> path{};
  fmt::format_to_n(path.data(), path.size() - 1, "/proc/{}/stat", process);
  std::array<char, 1024> text{};
  const int file = ::open(path.data(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return std::nullopt;
  const ssize_t bytes = ::read(file, text.data(), text.size() - 1);
  ::close(file);
  const char* const after_name = bytes > 0 ? std::strrchr(text.data(), ')') : nullptr;  // it may have anything in it
  Activity activity;
  unsigned long user = 0;
  unsigned long system = 0;
  if (after_name == nullptr || std::sscanf(after_name, ") %c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %lu %lu",
                                           &activity.state, &user, &system) != 3) {
    return std::nullopt;
  }
  activity.ticks = user + system;
  return activity;
}

}  // namespace

// One that has ended is there until its launcher takes notice.
bool ProcessJob::has_ended(int rank) const {
  if (!place_.is_here(rank)) return false;
  if (::kill(process_of(rank), 0) != 0) return errno == ESRCH;
  const std::optional<Activity> activity = activity_of(process_of(rank));
  return activity && activity->state == 'Z';
}

void ProcessJob::note_left(int rank) noexcept {
  shared().anyone_left.store(1, std::memory_order_release);
  member(rank).left.store(1, std::memory_order_release);
}

bool ProcessJob::all_left() const {
  bool all = true;
  for (int rank = 0; rank < place_.ranks; ++rank) all = all && has_left(rank);
  return all;
}

// Waits of a rank that has left for the others. These may still have work that needs nobody; but a process that has
// ended will never leave, and neither may one of this host that stands still: that was stopped, or sleeps and sleeps.
// Processes of other hosts answer, unless they were stopped. One rank asks them: the first of those that have left.
class ProcessJob::LeaversWatch {
 public:
  explicit LeaversWatch(ProcessJob& job)
      : job_(job), patience_(job.timeout_), next_(steady_clock::now() + look_interval(job.timeout_)) {
    for (int rank = 0; rank < job_.size(); ++rank) others_.push_back({.rank = rank, .work = 0, .alive = {}});
  }

  // Throws CommunicationError naming the rank that will not leave any more.
  void look() {
    const auto now = steady_clock::now();
    if (now < next_) return;
    next_ = now + look_interval(job_.timeout_);
    patience_.look();
    bool asks = true;
    for (int rank = 0; rank < job_.rank(); ++rank) asks = asks && !job_.has_left(rank);
    for (Other& other : others_) {
      if (job_.has_left(other.rank)) continue;
      if (job_.place_.is_here(other.rank)) {
        look_at(other, now);
      } else if (asks) {
        ask(other);
      } else {
        other.alive = now;
      }
    }
  }

 private:
  struct Other {
    int rank;
    std::uint64_t work;  // its processor time, as of the last look
    steady_clock::time_point alive;
  };

  // One that waits for a disk counts as working, and so does one of which nothing can be known.
  void look_at(Other& other, steady_clock::time_point now) {
    if (job_.has_ended(other.rank) && !job_.has_left(other.rank)) {
      throw CommunicationError(fmt::format(
          "the process of rank {} ended before it left the job; what it last said, or its launcher, may tell why",
          other.rank));
    }
    const Activity present = activity_of(job_.process_of(other.rank)).value_or(Activity{.state = 'D'});
    if (std::exchange(other.work, present.ticks) != present.ticks || present.state == 'D') other.alive = now;
    judge(other);
  }

  void ask(Other& other) {
    other.alive = std::max(other.alive, job_.answer_of(other.rank));
    judge(other);
    job_.exchange_->ask(other.rank);
  }

  void judge(Other& other) {
    other.alive = std::max(other.alive, job_.life_of(other.rank));
    if (!patience_.is_over(other.alive)) return;
    throw CommunicationError(never_left_text({&job_.place_.rank, 1}, {&other.rank, 1}, job_.timeout_));
  }

  ProcessJob& job_;
  Patience patience_;
  steady_clock::time_point next_;
  std::vector<Other> others_;
};

void ProcessJob::leave() noexcept {
  note_left(place_.rank);
  if (exchange_) exchange_->tell_news(Exchange::Kind::left);
  try {
    LeaversWatch watch(*this);
    while (failure() == nullptr && !all_left()) {
      watch.look();
      std::this_thread::sleep_for(poll);
    }
  } catch (const std::exception& error) {
    abort(error.what(), std::current_exception());
  }
  if (exchange_) exchange_->flush();
}

void ProcessJob::note_reported() noexcept { shared().reported.store(1, std::memory_order_release); }

void ProcessJob::say_reported() noexcept {
  note_reported();
  if (!exchange_) return;
  exchange_->tell_news(Exchange::Kind::reported);
  exchange_->flush();
}

bool ProcessJob::wait_for_report() noexcept {
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
    if (own_[slot] == nullptr) return slot;
  }
  throw UsageError(
      fmt::format("rank {} has {} arenas, which is the most that it can share with the ranks of its host: "
                  "end models that are no longer used",
                  place_.rank, own_.size()));
}

shared::Data ProcessJob::locate(const void* data, Bytes size) const {
  const auto* const begin = static_cast<const std::byte*>(data);
  const std::lock_guard lock(arena_mutex_);
  for (std::size_t slot = 0; slot < own_.size(); ++slot) {
    const SharedMemory* const own = own_[slot];
    if (own == nullptr || begin < own->data() || begin >= own->data() + own->size().count()) continue;
    const auto offset = static_cast<std::uint64_t>(begin - own->data());
    if (size.count() > own->size().count() - offset) continue;
    return {.offset = offset, .arena = static_cast<std::int32_t>(slot)};
  }
  return {};
}

const std::byte* ProcessJob::address(int rank, const shared::Data& there) {
  const auto slot = static_cast<std::size_t>(there.arena);
  const shared::ArenaEntry& entry = member(rank).arenas[slot];
  const std::lock_guard lock(arena_mutex_);
  Mapped& mapped = peers_[static_cast<std::size_t>(rank)][slot];
  if (mapped.generation != entry.generation) {
    forget_stale_arenas();
    mapped.memory = open_memory(rank, entry.descriptor, Bytes(entry.size));
    mapped.generation = entry.generation;
  }
  return mapped.memory.data() + there.offset;
}

SharedMemory ProcessJob::open_memory(int rank, int descriptor, Bytes size) const {
  try {
    return SharedMemory::open({.owner = process_of(rank), .descriptor = descriptor, .size = size});
  } catch (const CommunicationError&) {
    // The system closes a process's files a little before it counts as ended.
    const auto late = steady_clock::now() + std::chrono::seconds(1);
    while (!has_ended(rank) && steady_clock::now() < late) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (!has_ended(rank)) throw;
    throw CommunicationError(
        fmt::format("the process of rank {} has ended before rank {} could open its memory", rank, place_.rank));
  }
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
