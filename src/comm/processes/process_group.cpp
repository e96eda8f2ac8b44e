// The meeting point of processes. A phase ends when all ranks have arrived at its end; the last one opens the next.
// The ledger says what follows from who has not; whoever waits fills it from what stands in shared memory.
#include "comm/processes/process_group.hpp"

#include <fmt/format.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <utility>

#include "comm/job_failure.hpp"
#include "comm/processes/exchange.hpp"
#include "tessera/base/error.hpp"

namespace tessera::comm {
namespace {

using std::chrono::steady_clock;

// How long a wait sleeps before it looks at the job's state again, and from when on it looks at processes, too.
constexpr std::chrono::milliseconds look_again{20};
constexpr std::chrono::milliseconds long_wait{100};

constexpr std::size_t own_channel = 1;  // in a ledger that a group fills

void futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t seen, std::chrono::nanoseconds longest) {
  const timespec timeout{.tv_sec = 0, .tv_nsec = std::clamp<long>(longest.count(), 1'000, 999'999'999)};
  ::syscall(SYS_futex, &word, FUTEX_WAIT, seen, &timeout, nullptr, 0);
}

void futex_wake_all(std::atomic<std::uint32_t>& word) {
  ::syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

// Returns the bytes of a segment's data that peers may read; of a redistribution the first, whose allocation has all.
Bytes readable(const Signature& segment, int ranks) {
  if (segment.kind == CollectiveKind::redistribute) return std::min(segment.bytes, Bytes(1));
  const bool parts = segment.kind == CollectiveKind::all_gather || segment.kind == CollectiveKind::reduce_scatter;
  return segment.bytes * static_cast<std::uint64_t>(parts ? ranks : 1);
}

}  // namespace

ProcessGroup::ProcessGroup(ProcessJob& job, Identity identity, SharedMemory memory)
    : job_(job),
      identity_(std::move(identity)),
      memory_(std::make_shared<SharedMemory>(std::move(memory))),
      layout_(size()),
      scratch_(members().ranks.size()) {
  const auto is_here = [&](int rank) { return job_.place().is_here(rank); };
  all_here_ = std::all_of(members().ranks.begin(), members().ranks.end(), is_here);
  if (Exchange* exchange = job_.exchange()) exchange->add(*this);
  job_.add(*this);
}

ProcessGroup::~ProcessGroup() {
  job_.remove(*this);
  if (Exchange* exchange = job_.exchange()) exchange->remove(*this);
}

int ProcessGroup::place_of(int rank) const {
  const std::vector<int>& ranks = members().ranks;
  return static_cast<int>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
}

shared::Slot& ProcessGroup::slot(int place) const {
  return reinterpret_cast<shared::Slot*>(memory_->data() + layout_.slots())[place];
}

shared::Data* ProcessGroup::data(int place) const {
  const std::uint64_t offset = layout_.data() + static_cast<std::uint64_t>(place) * layout_.data_stride();
  return reinterpret_cast<shared::Data*>(memory_->data() + offset);
}

char* ProcessGroup::code_area(int place) const {
  const std::uint64_t offset = layout_.codes() + static_cast<std::uint64_t>(place) * shared::code_capacity;
  return reinterpret_cast<char*>(memory_->data() + offset);
}

Exchange* ProcessGroup::to_other_hosts() const { return all_here_ ? nullptr : job_.exchange(); }

std::byte* ProcessGroup::staging(int place, std::size_t round) const {
  const std::size_t area = static_cast<std::size_t>(place) * shared::staging_areas + round % shared::staging_areas;
  return memory_->data() + layout_.staging() + area * shared::staging_bytes;
}

void ProcessGroup::enter(const std::byte* data, int descriptor) {
  if (const JobFailure* failure = job_.failure()) throw_aborted(*failure);
  post(data, descriptor);
  arrive(place());
  if (Exchange* exchange = to_other_hosts()) exchange->tell_post(*this);
  await();
  check_agreement();
  if (const JobFailure* failure = job_.failure()) throw_failure(*failure, position(phases_));
  direct_ = size() == 1 || (all_here_ && all_reachable());
}

// Who leaves because of a failure does not wait for those that still read its memory: they look whether there was one
// once they have read, and what they read is void then.
void ProcessGroup::regroup(const Staged& staged) {
  if (const JobFailure* failure = job_.failure()) throw_failure(*failure, position(phases_));
  arrive(place());
  if (Exchange* exchange = to_other_hosts()) exchange->tell_staged(*this, staged);
  await();
}

void ProcessGroup::post(const std::byte* first, int descriptor) {
  encode(signature_, code_);
  const std::size_t segments = signature_.segments();
  if (segments > shared::most_segments || code_.size() > shared::code_capacity) {
    throw UsageError(fmt::format("{} has {} segments, which take {} bytes to describe; one call takes up to {} and {}",
                                 brief(signature_), segments, code_.size(), shared::most_segments,
                                 shared::code_capacity));
  }
  std::memcpy(code_area(place()), code_.data(), code_.size());
  slot(place()).post = {.code_size = static_cast<std::uint32_t>(code_.size()),
                        .segments = static_cast<std::uint32_t>(segments),
                        .descriptor = descriptor};
  for (std::size_t segment = 0; segment < segments; ++segment) {
    const std::byte* const begin = segment == 0 ? first : signature_.further.data(segment - 1);
    data(place())[segment] = find(segment_of(signature_, segment), begin);
  }
}

shared::Data ProcessGroup::find(const Signature& segment, const std::byte* begin) const {
  const Bytes size = readable(segment, ProcessGroup::size());
  if (size == Bytes(0)) return {.offset = 0, .arena = shared::no_data};
  return job_.locate(begin, size);
}

// The phase ends when nobody's arrivals are as few as the phases before it. Another host's rank may already be one
// further: it saw a third one come whose message is still on its way to this host. All of it is sequentially
// consistent, so that of two ranks that come at once the later one sees both.
void ProcessGroup::arrive(int place) noexcept {
  slot(place).arrivals.fetch_add(1);
  end_phase();
}

void ProcessGroup::end_phase() noexcept {
  std::uint32_t present = state().phase.load();
  for (int other = 0; other < size(); ++other) {
    if (static_cast<std::uint32_t>(slot(other).arrivals.load()) == present) return;
  }
  if (state().phase.compare_exchange_strong(present, present + 1)) futex_wake_all(state().phase);
}

// A phase that has ended is passed, whatever has happened since. Whoever waits ends it where the last one to arrive was
// killed before it could.
void ProcessGroup::await() {
  Patience patience(job_.timeout());
  const auto long_since = steady_clock::now() + long_wait;
  auto follow = long_since;
  while (true) {
    const JobFailure* const failure = job_.failure();
    const std::uint32_t present = state().phase.load(std::memory_order_acquire);
    if (present != static_cast<std::uint32_t>(phases_)) break;
    if (failure != nullptr) throw_failure(*failure, position(phases_ + 1));
    const auto next_look = patience.look();
    const auto now = steady_clock::now();
    if (const std::optional<Verdict> verdict = judge(patience, now >= long_since)) {
      job_.abort(*verdict);
      continue;
    }
    if (now >= follow) {
      follow_life();
      follow = now + look_interval(job_.timeout());
    }
    end_phase();
    futex_wait(state().phase, present, std::min<std::chrono::nanoseconds>(look_again, next_look - now));
  }
  if (follow != long_since) job_.note_awaited(-1);
  ++phases_;
}

// Every rank sees what all have posted, and says the same.
void ProcessGroup::check_agreement() {
  bool agreed = true;
  for (int other = 0; other < size(); ++other) agreed = agreed && code(other) == code_;
  if (agreed) return;
  Ledger ledger(job_.place().ranks);
  Verdict verdict = announce_to(ledger).value();
  verdict.position = position(phases_);
  job_.abort(verdict);
  throw_failure(*job_.failure(), verdict.position);
}

// Announces all who have come as far as this rank, and returns what the last of them brings about.
std::optional<Verdict> ProcessGroup::announce_to(Ledger& ledger) const {
  ledger.open(name(), members().ranks);
  std::optional<Verdict> verdict;
  for (int other = 0; other < size(); ++other) {
    if (has_come(other)) verdict = ledger.announce(rank_at(other), own_channel, code(other));
  }
  return verdict;
}

// Announces those who wait in this group for others of it, as another group of this process sees them.
void ProcessGroup::announce_waiting(Ledger& ledger) const {
  const std::uint32_t phase = state().phase.load();
  const auto waits = [&](int other) { return static_cast<std::uint32_t>(slot(other).arrivals.load()) != phase; };
  int waiting = 0;
  for (int other = 0; other < size(); ++other) waiting += waits(other) ? 1 : 0;
  if (waiting == 0 || waiting == size()) return;
  const std::size_t index = ledger.channels();
  ledger.open(name(), members().ranks);
  for (int other = 0; other < size(); ++other) {
    if (waits(other)) ledger.announce(rank_at(other), index, code(other));
  }
}

// Whether the present phase will never end: somebody is late, has left, or is no more. Allocates only when that may be.
std::optional<Verdict> ProcessGroup::judge(const Patience& patience, bool waits_long) const {
  if (!waits_long && !job_.anyone_left() && !patience.is_over()) return std::nullopt;
  const auto is_gone = [&](int other) {
    if (has_come(other)) return false;
    return job_.has_left(rank_at(other)) || (waits_long && job_.has_ended(rank_at(other)));
  };
  bool any_gone = false;
  for (int other = 0; other < size(); ++other) any_gone = any_gone || is_gone(other);
  if (!any_gone && !patience.is_over()) return std::nullopt;
  Ledger ledger(job_.place().ranks);
  announce_to(ledger);
  std::optional<Verdict> verdict;
  for (int other = 0; other < size(); ++other) {
    const int rank = rank_at(other);
    const auto how = job_.has_left(rank) ? Ledger::Leaving::left : Ledger::Leaving::ended;
    if (is_gone(other)) verdict = ledger.leave(rank, how);
  }
  if (!verdict && patience.is_over()) {
    const auto is_silent = [&](int rank) { return patience.is_over(job_.life_of(rank)); };
    job_.for_each_group([&](const ProcessGroup& group) {
      if (&group != this) group.announce_waiting(ledger);
    });
    try {
      verdict = ledger.late({.position = {own_channel, 1},
                             .code = code_,
                             .timeout = job_.timeout(),
                             .waiting_for = Ledger::WaitFor::ranks,
                             .is_silent = is_silent,
                             .awaited_by = [&](int rank) { return job_.awaited_by(rank); }});
    } catch (const DataError&) {  // a rank has come to another group, and writes there now: it is asked for again
    }
  }
  // Whoever came and left meanwhile ended the phase first.
  if (!verdict || state().phase.load() != static_cast<std::uint32_t>(phases_)) return std::nullopt;
  verdict->position = position(phases_ + 1);
  return verdict;
}

bool ProcessGroup::all_reachable() const {
  for (int other = 0; other < size(); ++other) {
    const std::span all(data(other), slot(other).post.segments);
    if (std::any_of(all.begin(), all.end(), [](const shared::Data& each) { return each.arena == shared::nowhere; })) {
      return false;
    }
  }
  return true;
}

const std::byte* ProcessGroup::data_of(int other, std::size_t segment) {
  const shared::Data& there = data(other)[segment];
  if (there.arena == shared::no_data) return nullptr;
  return job_.address(rank_at(other), there);
}

// A rank that waits is as much alive as the one of whom it has heard least.
void ProcessGroup::follow_life() {
  int awaited = -1;
  for (int other = 0; other < size(); ++other) {
    if (has_come(other)) continue;
    if (awaited < 0 || job_.life_of(rank_at(other)) < job_.life_of(awaited)) awaited = rank_at(other);
  }
  if (awaited < 0) return;
  job_.note_awaited(awaited);
  if (job_.life_of(awaited) > job_.life_of(members().rank())) job_.show_life(job_.life_of(awaited));
}

// To the end of the phase to which this rank has come.
bool ProcessGroup::has_come(int other) const { return slot(other).arrivals.load() >= slot(place()).arrivals.load(); }

// ---- collectives ----
//
// One rank's part of each is on its stream's thread, which blocks until all ranks have done theirs. As among threads a
// rank reads its peers' arenas; where some rank's data cannot be reached, all of it goes through staging areas.

std::unique_ptr<Communicator> make_process_communicator(std::shared_ptr<ProcessGroup> group) {
  return make_task_communicator(group->members(), group->name(), [group](Stream&, const Signature& signature) {
    return [group, signature](const auto& operation) { group->run(signature, operation); };
  });
}

}  // namespace tessera::comm
