// Launches meet by their number, move what they move, and part; an abort ends only its own rank's.
#include "fake_nccl.hpp"

#include <cuda_runtime.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <utility>

#include "tessera/base/half.hpp"

namespace tessera::comm {

struct FakeNccl::Operation {
  enum class Kind { all_gather, broadcast, send, receive, reduce_scatter } kind;
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
  std::size_t size = 0;  // bytes; of a sum, elements
  int peer = 0;          // of send and receive; of a broadcast the root
  DType type = DType::fp32;

  bool is_collective() const { return kind != Kind::send && kind != Kind::receive; }
  bool fits(const Operation& other) const {
    return kind == other.kind && size == other.size && type == other.type &&
           (kind != Kind::broadcast || peer == other.peer);
  }
};

struct FakeNccl::Meeting {
  struct Round {
    std::vector<std::vector<Operation>> operations;
    int posted = 0;
    int done = 0;
  };
  explicit Meeting(int of_ranks) : ranks(of_ranks) {}

  const int ranks;
  std::mutex mutex;
  std::condition_variable changed;
  std::map<std::uint64_t, Round> rounds;
  std::atomic<int> joined = 0;
  int moving = 0;
  bool anyone_aborted = false;
  std::map<std::pair<std::uint64_t, int>, std::shared_ptr<Meeting>> parts;  // by number of the split, and group
};

struct FakeNccl::Comm {
  std::shared_ptr<Meeting> meeting;
  int rank = 0;
  std::uint64_t launches = 0;
  std::uint64_t splits = 0;
  int polls = 0;       // still in progress for so many
  long switches = 0;   // of the calling thread, when it called
  bool large = false;  // connected for collectives of greeting()
  std::atomic<bool> aborted = false;
  std::atomic<int> running = 0;
  std::atomic<bool> splitting = false;
  bool joining = true;
  bool finalizing = false;
};

namespace {

using Comm = FakeNccl::Comm;
using Operation = FakeNccl::Operation;
using Meeting = FakeNccl::Meeting;

struct Pending {
  NcclLibrary::Call call{};
  std::vector<Operation> operations;
  bool open = false;
};
thread_local Pending pending;

std::array<std::atomic<int>, 8> running_on;  // launches, by device

// A handle goes at once when it is aborted; launches keep what they need of it.
std::shared_ptr<Comm>& shared_comm_of(NcclLibrary::Handle handle) {
  return *static_cast<std::shared_ptr<Comm>*>(handle);
}
Comm& comm_of(NcclLibrary::Handle handle) { return *shared_comm_of(handle); }

// How often the calling thread has given up its processor to wait for something.
long voluntary_switches() {
  rusage usage{};
  ::getrusage(RUSAGE_THREAD, &usage);
  return usage.ru_nvcsw;
}

template <typename Element>
float element_at(const std::byte* data, std::size_t index) {
  Element element;
  std::memcpy(&element, data + index * sizeof(Element), sizeof(Element));
  return static_cast<float>(element);
}

// In the wire's type and from the last rank to the first: another order than Tessera's.
template <typename Element>
void sum_backwards(const std::vector<const std::byte*>& parts, std::byte* to, std::size_t elements) {
  for (std::size_t i = 0; i < elements; ++i) {
    auto sum = static_cast<Element>(element_at<Element>(parts.back(), i));
    for (std::size_t left = parts.size() - 1; left-- > 0;) {
      sum = static_cast<Element>(static_cast<float>(sum) + element_at<Element>(parts[left], i));
    }
    std::memcpy(to + i * sizeof(Element), &sum, sizeof(Element));
  }
}

void copy(std::byte* to, const std::byte* from, std::size_t size) {
  if (size > 0 && to != from) std::memcpy(to, from, size);
}

// The n-th operation of a rank that is collective, or that sends to `to`.
template <typename Condition>
const Operation* find(const std::vector<Operation>& operations, std::size_t n, const Condition& condition) {
  for (const Operation& each : operations) {
    if (condition(each) && n-- == 0) return &each;
  }
  return nullptr;
}

class Move {
 public:
  Move(const Comm& comm, const Meeting::Round& round) : comm_(comm), round_(round) {}

  // Whether all ranks called what fits together.
  bool operator()() {
    const auto& mine = round_.operations[static_cast<std::size_t>(comm_.rank)];
    std::size_t collectives = 0;
    std::map<int, std::size_t> received;
    for (const Operation& each : mine) {
      if (each.is_collective() && !move_collective(each, collectives++)) return false;
      if (each.kind == Operation::Kind::receive && !receive(each, received[each.peer]++)) return false;
    }
    return true;
  }

 private:
  bool receive(const Operation& mine, std::size_t n) {
    const auto to_me = [&](const Operation& each) {
      return each.kind == Operation::Kind::send && each.peer == comm_.rank;
    };
    const Operation* const sent = find(round_.operations[static_cast<std::size_t>(mine.peer)], n, to_me);
    if (sent == nullptr || sent->size != mine.size) return false;
    copy(mine.to, sent->from, mine.size);
    return true;
  }

  bool move_collective(const Operation& mine, std::size_t n) {
    std::vector<const Operation*> all;
    for (const auto& operations : round_.operations) {
      all.push_back(find(operations, n, [](const Operation& each) { return each.is_collective(); }));
      if (all.back() == nullptr || !all.back()->fits(mine)) return false;
    }
    if (mine.kind == Operation::Kind::all_gather) {
      for (std::size_t rank = 0; rank < all.size(); ++rank) {
        copy(mine.to + rank * mine.size, all[rank]->from + rank * mine.size, mine.size);
      }
    } else if (mine.kind == Operation::Kind::broadcast) {
      copy(mine.to, all[static_cast<std::size_t>(mine.peer)]->from, mine.size);
    } else {
      sum(mine, all);
    }
    return true;
  }

  void sum(const Operation& mine, const std::vector<const Operation*>& all) {
    const std::size_t part = static_cast<std::size_t>(comm_.rank) * mine.size * size_of(mine.type).count();
    std::vector<const std::byte*> parts;
    for (const Operation* each : all) parts.push_back(each->from + part);
    if (mine.type == DType::fp32) return sum_backwards<float>(parts, mine.to, mine.size);
    if (mine.type == DType::bf16) return sum_backwards<bf16>(parts, mine.to, mine.size);
    sum_backwards<fp16>(parts, mine.to, mine.size);
  }

  const Comm& comm_;
  const Meeting::Round& round_;
};

// On the device's thread. Nobody leaves while others may read its memory.
void run(Comm& comm, std::uint64_t number, const std::vector<Operation>& operations, bool hangs) {
  Meeting& meeting = *comm.meeting;
  std::unique_lock lock(meeting.mutex);
  const auto wait = [&](const auto& condition) {
    while (!comm.aborted && !condition()) meeting.changed.wait_for(lock, std::chrono::milliseconds(5));
    meeting.changed.wait(lock, [&] { return !comm.aborted || meeting.moving == 0; });
    return !comm.aborted;
  };
  if (hangs) {
    wait([] { return false; });
    return;
  }
  Meeting::Round& round = meeting.rounds[number];
  round.operations.resize(static_cast<std::size_t>(meeting.ranks));
  round.operations[static_cast<std::size_t>(comm.rank)] = operations;
  ++round.posted;
  meeting.changed.notify_all();
  if (!wait([&] { return round.posted == meeting.ranks && !meeting.anyone_aborted; })) return;
  ++meeting.moving;
  lock.unlock();
  const bool agreed = Move(comm, round)();
  lock.lock();
  --meeting.moving;
  if (agreed) ++round.done;
  meeting.changed.notify_all();
  wait([&] { return round.done >= meeting.ranks; });
  if (!comm.aborted && ++round.done == 2 * meeting.ranks) meeting.rounds.erase(number);
}

}  // namespace

FakeNccl::~FakeNccl() = default;

NcclLibrary::Id FakeNccl::unique_id() {
  std::this_thread::sleep_for(faults_.starts_after);
  const std::lock_guard lock(mutex_);
  Id id{};
  const std::uint64_t numbers[] = {++ids_, static_cast<std::uint64_t>(::getpid())};
  std::memcpy(id.data(), numbers, sizeof(numbers));
  return id;
}

NcclState FakeNccl::join(Handle& made, const Id& id, const Place& place) {
  std::uint64_t numbers[2];
  std::memcpy(numbers, id.data(), sizeof(numbers));
  if (numbers[1] != static_cast<std::uint64_t>(::getpid())) {
    throw NcclFailure(
        "the tests' NCCL lives in one process, and its ranks cannot be of several: start them as threads, with "
        "--ranks");
  }
  auto comm = std::make_shared<Comm>();
  {
    const std::lock_guard lock(mutex_);
    std::shared_ptr<Meeting>& meeting = meetings_[id];
    if (!meeting) meeting = std::make_shared<Meeting>(place.ranks);
    comm->meeting = meeting;
  }
  comm->rank = place.rank;
  ++comm->meeting->joined;
  ++open_handles_;
  made = new std::shared_ptr<Comm>(comm);
  return state(made);
}

NcclState FakeNccl::split(Handle& made, Handle parent, int group, const Place& place) {
  Comm& whole = comm_of(parent);
  auto comm = std::make_shared<Comm>();
  {
    const std::lock_guard lock(whole.meeting->mutex);
    std::shared_ptr<Meeting>& meeting = whole.meeting->parts[{whole.splits++, group}];
    if (!meeting) meeting = std::make_shared<Meeting>(place.ranks);
    comm->meeting = meeting;
  }
  comm->rank = place.rank;
  ++comm->meeting->joined;
  ++open_handles_;
  auto* const child = new std::shared_ptr<Comm>(comm);
  if (!faults_.splits_late) {
    made = child;
    return state(made);
  }
  whole.splitting = true;
  std::thread([&made, child, whole = shared_comm_of(parent)] {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    made = child;
    whole->splitting = false;
  }).detach();
  return NcclState::in_progress;
}

NcclLibrary::RankAndSize FakeNccl::rank_and_size(Handle handle) {
  const Comm& comm = comm_of(handle);
  return {.rank = comm.rank, .ranks = comm.meeting->ranks, .device = comm.rank};
}

NcclState FakeNccl::answer(Comm& comm) const {
  comm.polls = faults_.polls_until_ready;
  comm.switches = voluntary_switches();
  return comm.polls == 0 ? NcclState::done : NcclState::in_progress;
}

NcclState FakeNccl::state(Handle handle) {
  if (handle == nullptr) throw NcclFailure("ncclCommGetAsyncError failed: invalid argument");
  Comm& comm = comm_of(handle);
  if (comm.splitting) return NcclState::in_progress;
  if (faults_.errors && comm.rank == faults_.rank && comm.launches >= faults_.launch) {
    throw NcclFailure("NCCL failed: remote process exited or there was a network error");
  }
  if (comm.joining) {
    if (comm.meeting->joined < comm.meeting->ranks) return NcclState::in_progress;
    comm.joining = false;
    return answer(comm);
  }
  if (comm.finalizing) return comm.running == 0 ? NcclState::done : NcclState::in_progress;
  if (comm.polls == 0) return NcclState::done;
  if (--comm.polls > 0) return NcclState::in_progress;
  ++counts_.waits;
  if (voluntary_switches() != comm.switches) ++counts_.slept;
  return NcclState::done;
}

NcclState FakeNccl::finalize(Handle handle) {
  comm_of(handle).finalizing = true;
  return state(handle);
}

void FakeNccl::destroy(Handle handle) noexcept {
  --open_handles_;
  delete static_cast<std::shared_ptr<Comm>*>(handle);
}

void FakeNccl::abort(Handle handle) noexcept {
  Comm& comm = comm_of(handle);
  {
    const std::lock_guard lock(comm.meeting->mutex);
    comm.aborted = true;
    comm.meeting->anyone_aborted = true;
    comm.meeting->changed.notify_all();
  }
  destroy(handle);
}

void FakeNccl::group_begin() { pending.open = true; }

NcclState FakeNccl::group_end() {
  pending.open = false;
  if (pending.operations.empty()) return NcclState::done;
  return launch(pending.call, std::exchange(pending.operations, {}));
}

NcclState FakeNccl::enqueue(const Call& call, const Operation& operation) {
  if (!pending.open) return launch(call, {operation});
  pending.call = call;
  pending.operations.push_back(operation);
  return NcclState::done;
}

void FakeNccl::note_size(Comm& comm, const std::vector<Operation>& operations) {
  for (const Operation& each : operations) {
    if (each.kind != Operation::Kind::all_gather || comm.large) continue;
    if (each.size * static_cast<std::size_t>(comm.meeting->ranks) < greeting().count()) continue;
    comm.large = true;
    ++counts_.connected;
    if (comm.launches > 2) ++counts_.late;
  }
}

NcclState FakeNccl::launch(const Call& call, std::vector<Operation> operations) {
  const std::shared_ptr<Comm> shared = shared_comm_of(call.handle);
  Comm& comm = *shared;
  const std::uint64_t number = ++comm.launches;
  note_size(comm, operations);
  const bool faulty = comm.rank == faults_.rank && number >= faults_.launch;
  if (faulty && faults_.refuses) throw NcclFailure("ncclGroupEnd failed: unhandled system error");
  ++comm.running;
  const bool hangs = faulty && faults_.hangs;
  std::minstd_rand delays(
      static_cast<unsigned>(faults_.delay_seed * 1000 + number * 16 + static_cast<unsigned>(comm.rank)));
  std::chrono::microseconds delay(faults_.delay_seed == 0 ? 0 : delays() % 300);
  if (faulty && number == faults_.launch) delay += faults_.computes;
  int device = 0;
  cudaGetDevice(&device);
  std::atomic<int>& on_device = running_on.at(static_cast<std::size_t>(device));
  const cudaLaunchConfig_t configuration{
      .gridDim = {1}, .blockDim = {1}, .stream = static_cast<cudaStream_t>(call.stream)};
  emulated::launch(configuration, [shared, number, hangs, delay, &on_device, beside = faults_.beside,
                                   operations = std::move(operations)] {
    if (++on_device > 1 && beside != nullptr) ++*beside;
    std::this_thread::sleep_for(delay);
    run(*shared, number, operations, hangs);
    --on_device;
    --shared->running;
  });
  return answer(comm);
}

NcclState FakeNccl::all_gather(const Call& call, std::byte* data, Bytes part) {
  return enqueue(call, {.kind = Operation::Kind::all_gather, .from = data, .to = data, .size = part.count()});
}
NcclState FakeNccl::broadcast(const Call& call, std::byte* data, Bytes size, int root) {
  return enqueue(call,
                 {.kind = Operation::Kind::broadcast, .from = data, .to = data, .size = size.count(), .peer = root});
}
NcclState FakeNccl::send(const Call& call, const std::byte* data, Bytes size, int to) {
  return enqueue(call, {.kind = Operation::Kind::send, .from = data, .size = size.count(), .peer = to});
}
NcclState FakeNccl::receive(const Call& call, std::byte* data, Bytes size, int from) {
  return enqueue(call, {.kind = Operation::Kind::receive, .to = data, .size = size.count(), .peer = from});
}
NcclState FakeNccl::reduce_scatter(const Call& call, const Sum& sum) {
  return enqueue(call, {.kind = Operation::Kind::reduce_scatter,
                        .from = sum.data,
                        .to = sum.result,
                        .size = sum.elements,
                        .type = sum.type});
}

void* FakeNccl::allocate(Bytes size) {
  void* data = nullptr;
  return cudaMalloc(&data, size.count()) == cudaSuccess ? data : nullptr;
}
void FakeNccl::release(void* data) noexcept { cudaFree(data); }
void* FakeNccl::add_memory(Handle, void* data, Bytes) {
  ++known_memory_;
  return data;
}
void FakeNccl::remove_memory(Handle, void*) noexcept { --known_memory_; }

}  // namespace tessera::comm
