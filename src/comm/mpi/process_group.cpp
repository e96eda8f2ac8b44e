// The meeting point of processes. A phase ends when all ranks have arrived at its end; the last one opens the next. The
// word `phase` decides what happened to one: whoever changes it first, the last rank or one that gives up.
#include "comm/mpi/process_group.hpp"

#include <fmt/format.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstring>
#include <iterator>
#include <numeric>
#include <thread>
#include <utility>

#include "comm/job_failure.hpp"
#include "comm/mpi/exchange.hpp"
#include "comm/mpi/shared_memory.hpp"
#include "tessera/base/error.hpp"

namespace tessera::comm {
namespace {

using std::chrono::steady_clock;

// How long a wait sleeps before it looks at the job's state again.
constexpr std::chrono::milliseconds look_again{20};

void futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t seen, std::chrono::nanoseconds longest) {
  const timespec timeout{.tv_sec = 0, .tv_nsec = std::clamp<long>(longest.count(), 1'000, 999'999'999)};
  ::syscall(SYS_futex, &word, FUTEX_WAIT, seen, &timeout, nullptr, 0);
}

void futex_wake_all(std::atomic<std::uint32_t>& word) {
  ::syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

// What peers may read of a segment's data.
Bytes readable(const Signature& segment, int ranks) {
  const bool parts = segment.kind == CollectiveKind::all_gather || segment.kind == CollectiveKind::reduce_scatter;
  return segment.bytes * static_cast<std::uint64_t>(parts ? ranks : 1);
}

}  // namespace

ProcessGroup::ProcessGroup(ProcessJob& job, Identity identity, SharedMemory memory)
    : job_(job),
      identity_(std::move(identity)),
      by_rank_(members().ranks.size()),
      memory_(std::make_shared<SharedMemory>(std::move(memory))),
      layout_(size()),
      scratch_(members().ranks.size()) {
  std::iota(by_rank_.begin(), by_rank_.end(), 0);
  std::sort(by_rank_.begin(), by_rank_.end(), [&](int a, int b) { return rank_at(a) < rank_at(b); });
  const auto is_here = [&](int place) { return job_.place().is_here(rank_at(place)); };
  std::copy_if(by_rank_.begin(), by_rank_.end(), std::back_inserter(here_), is_here);
  if (Exchange* exchange = job_.exchange()) exchange->add(*this);
}

ProcessGroup::~ProcessGroup() {
  if (Exchange* exchange = job_.exchange()) exchange->remove(*this);
}

int ProcessGroup::place_of(int rank) const {
  const auto is_before = [&](int place, int wanted) { return rank_at(place) < wanted; };
  return *std::lower_bound(by_rank_.begin(), by_rank_.end(), rank, is_before);
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

bool ProcessGroup::is_all_here() const { return here_.size() == by_rank_.size(); }

Exchange* ProcessGroup::to_other_hosts() const { return is_all_here() ? nullptr : job_.exchange(); }

std::byte* ProcessGroup::staging(int place, std::size_t round) const {
  const std::size_t area = static_cast<std::size_t>(place) * shared::staging_areas + round % shared::staging_areas;
  return memory_->data() + layout_.staging() + area * shared::staging_bytes;
}

void ProcessGroup::enter(const Signature& signature, const std::byte* data, int descriptor) {
  if (const JobFailure* failure = job_.failure()) throw_aborted(*failure);
  signature_ = signature;
  post(data, descriptor);
  arrive(place());
  if (Exchange* exchange = to_other_hosts()) exchange->tell_post(*this);
  await(Stage::entering);
  check_agreement();
  if (const JobFailure* failure = job_.failure()) throw_aborted(*failure);
  direct_ = size() == 1 || (is_all_here() && all_reachable());
}

// Who leaves because of a failure does not wait for those that still read its memory: they look whether there was one
// once they have read, and what they read is void then.
void ProcessGroup::regroup(const Staged& staged) {
  if (const JobFailure* failure = job_.failure()) throw_aborted(*failure);
  arrive(place());
  if (Exchange* exchange = to_other_hosts()) exchange->tell_staged(*this, staged);
  await(Stage::moving);
}

void ProcessGroup::fail(const std::exception_ptr& exception) { job_.abort(text_of(exception), exception); }

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
  const ProcessJob::Reference there = job_.locate(begin, size);
  return {.offset = there.offset, .arena = there.arena};
}

// The phase ends when nobody's arrivals are as few as the phases before it. Another host's rank may already be one
// further: it saw a third one come whose message is still on its way to this host. All of it is sequentially
// consistent, so that of two ranks that come at once the later one sees both.
void ProcessGroup::arrive(int place) noexcept {
  slot(place).arrivals.fetch_add(1);
  std::uint32_t present = state().phase.load();
  if ((present & shared::Group::failed) != 0) return;
  for (int other = 0; other < size(); ++other) {
    if ((static_cast<std::uint32_t>(slot(other).arrivals.load()) & ~shared::Group::failed) == present) return;
  }
  const std::uint32_t next = (present + 1) & ~shared::Group::failed;
  if (state().phase.compare_exchange_strong(present, next)) wake();
}

void ProcessGroup::wake() noexcept { futex_wake_all(state().phase); }

// The checks stand in this order so that all ranks of a failed collective get its verdict, not the abort it caused.
void ProcessGroup::await(Stage stage) {
  Patience patience(job_.timeout());
  const auto look_for_ended = steady_clock::now() + 5 * look_again;
  auto follow = look_for_ended;
  const std::uint32_t mine = phase();
  while (true) {
    std::uint32_t seen = state().phase.load(std::memory_order_acquire);
    if (job_.failure() != nullptr) seen = state().phase.load(std::memory_order_acquire);
    if ((seen & ~shared::Group::failed) != mine) break;
    if ((seen & shared::Group::failed) != 0) throw_verdict();
    if (const JobFailure* failure = job_.failure()) throw_aborted(*failure);
    if (stage == Stage::entering && job_.anyone_left()) check_left();
    const auto next_look = patience.look();
    check_late(patience);
    const auto now = steady_clock::now();
    if (now >= look_for_ended) check_ended();
    if (now >= follow) {
      follow_life();
      follow = now + look_interval(job_.timeout());
    }
    futex_wait(state().phase, seen, std::min<std::chrono::nanoseconds>(look_again, next_look - now));
  }
  ++phases_;
}

// Every rank sees what all have posted, and says the same.
void ProcessGroup::check_agreement() {
  bool agreed = true;
  for (int other = 0; other < size(); ++other) agreed = agreed && code(other) == code_;
  if (agreed) return;
  std::vector<int> ranks;
  std::vector<std::string_view> codes;
  for (const int other : by_rank_) {
    ranks.push_back(rank_at(other));
    codes.push_back(code(other));
  }
  const CommunicationError error(disagreement_text(name(), codes, ranks));
  // On another host the phase may not have ended yet: a post is on its way there.
  if (Exchange* exchange = to_other_hosts()) {
    exchange->tell_verdict(*this, static_cast<std::uint32_t>(phases_ - 1) & ~shared::Group::failed, error.what());
  }
  job_.abort(error.what(), std::make_exception_ptr(error));
  throw error;
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
  return job_.address(rank_at(other), {.arena = there.arena, .offset = there.offset});
}

// Waiting for a rank whose body has returned would only end with the deadline.
void ProcessGroup::check_left() {
  std::vector<int> left = ranks_that(false);
  std::erase_if(left, [&](int missing) { return !job_.has_left(missing); });
  if (!left.empty()) give_up(Cause::left, left);
}

void ProcessGroup::check_late(const Patience& patience) {
  if (!patience.is_over()) return;
  std::vector<int> late = ranks_that(false);
  std::erase_if(late, [&](int missing) { return !patience.is_over(job_.life_of(missing)); });
  if (!late.empty()) give_up(Cause::late, late);
}

// A rank that waits is as much alive as the one of whom it has heard least.
void ProcessGroup::follow_life() {
  auto least = Patience::Clock::time_point::max();
  for (int other = 0; other < size(); ++other) {
    if (!has_come(other)) least = std::min(least, job_.life_of(rank_at(other)));
  }
  if (least != Patience::Clock::time_point::max() && least > job_.life_of(members().rank())) job_.show_life(least);
}

// So would waiting for one whose process was killed.
void ProcessGroup::check_ended() {
  const auto has_ended = [&](int other) { return !has_come(other) && job_.has_ended(rank_at(other)); };
  if (std::none_of(here_.begin(), here_.end(), has_ended)) return;  // every time but the last: nothing is allocated
  std::vector<int> ended;
  for (const int other : here_) {
    if (has_ended(other)) ended.push_back(rank_at(other));
  }
  if (!ended.empty()) give_up(Cause::ended, ended);
}

// All ranks in the present collective get this verdict, all other waits of the job an AbortedError with it as cause.
// Returns when the phase has ended after all.
void ProcessGroup::give_up(Cause cause, const std::vector<int>& missing) {
  const std::vector<int> waiting = ranks_that(true);
  const Standstill standstill{.communicator = name(), .signature = signature_, .waiting = waiting, .missing = missing};
  const std::string text = cause == Cause::late   ? timeout_text(standstill, job_.timeout())
                           : cause == Cause::left ? left_text(standstill)
                                                  : ended_text(standstill);
  std::uint32_t present = phase();
  if (!state().phase.compare_exchange_strong(present, present | shared::Group::failed, std::memory_order_acq_rel)) {
    if ((present & shared::Group::failed) != 0) throw_verdict();
    return;
  }
  write_text(state().verdict, members().rank(), text);
  wake();
  if (Exchange* exchange = to_other_hosts()) exchange->tell_verdict(*this, phase(), text);
  const CommunicationError error(text);
  job_.abort(text, std::make_exception_ptr(error));
  throw error;
}

void ProcessGroup::fail_phase(std::uint32_t failed_phase, int from, std::string_view verdict) noexcept {
  std::uint32_t present = failed_phase;
  if (!state().phase.compare_exchange_strong(present, present | shared::Group::failed, std::memory_order_acq_rel)) {
    return;
  }
  write_text(state().verdict, from, verdict);
  wake();
}

// Who gave up writes its verdict right after it has closed the phase, and then aborts the job, unless it is killed in
// between.
void ProcessGroup::throw_verdict() const {
  const auto deadline = steady_clock::now() + job_.timeout();
  const auto told = [&] { return is_there(state().verdict) && job_.failure() != nullptr; };
  while (!told() && steady_clock::now() < deadline) std::this_thread::sleep_for(std::chrono::microseconds(100));
  if (!is_there(state().verdict)) {
    throw CommunicationError(fmt::format("{} failed in communicator {} on a rank that ended before it could say why",
                                         brief(signature_), name()));
  }
  throw CommunicationError(state().verdict.characters.data());
}

// To the end of the phase that this rank waits for.
bool ProcessGroup::has_come(int other) const { return slot(other).arrivals.load() >= slot(place()).arrivals.load(); }

std::vector<int> ProcessGroup::ranks_that(bool have_come) const {
  std::vector<int> ranks;
  for (const int other : by_rank_) {
    if (has_come(other) == have_come) ranks.push_back(rank_at(other));
  }
  return ranks;
}

}  // namespace tessera::comm
