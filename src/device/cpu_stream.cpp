// Waiting for a position, recording and awaiting events, running tasks and keeping the first failure; then the two
// kinds of stream: without a thread and with one.
#include "device/cpu_stream.hpp"

#include <fmt/format.h>
#include <pthread.h>

#include <algorithm>
#include <iterator>
#include <thread>
#include <utility>
#include <vector>

#include "tessera/base/error.hpp"

namespace tessera::device {
namespace {

// One of these is a stream's pace: where all streams were equally slow, none would get far ahead of another.
constexpr unsigned longest_delays_us[] = {0, 30, 300};

std::minstd_rand seeded(std::uint64_t seed) {
  std::seed_seq mixed{static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)};
  return std::minstd_rand(mixed);
}

constexpr std::size_t longest_thread_name = 15;  // Linux

// No wait is longer: whoever says more means for ever, and the clock counts nanoseconds, of which there are 292 years.
constexpr std::chrono::milliseconds longest_wait = std::chrono::hours(24 * 365);

}  // namespace

// ---- progress ----

void Progress::advance() {
  const std::lock_guard lock(mutex_);
  const std::uint64_t now = completed() + 1;
  completed_.store(now, std::memory_order_release);
  for (Waiter* waiter = waiters_; waiter != nullptr; waiter = waiter->next) {
    if (waiter->position <= now) waiter->reached.notify_one();
  }
}

void Progress::fail(std::exception_ptr failure) {
  failure_ = std::move(failure);
  failed_at_ = completed();
  failed_.store(true, std::memory_order_release);
}

bool Progress::wait_for(std::uint64_t position, Deadline deadline) {
  if (completed() >= position) return true;
  std::unique_lock lock(mutex_);
  Waiter waiter{.position = position, .next = waiters_};
  waiters_ = &waiter;
  const auto reached = [&] { return completed() >= position; };
  if (deadline) {
    waiter.reached.wait_until(lock, *deadline, reached);
  } else {
    waiter.reached.wait(lock, reached);
  }
  remove(waiter);
  return reached();
}

void Progress::remove(Waiter& waiter) {
  Waiter** link = &waiters_;
  while (*link != &waiter) link = &(*link)->next;
  *link = waiter.next;
}

// ---- events ----

CpuEvent::CpuEvent(std::string name) { record_.event_name = std::make_shared<const std::string>(std::move(name)); }

bool CpuEvent::complete() const { return recorded() && record_.progress->completed() >= record_.position; }

void CpuEvent::record(const std::shared_ptr<Progress>& progress, std::uint64_t position) {
  record_.progress = progress;
  record_.position = position;
}

std::unique_ptr<Event::Implementation> make_cpu_event(std::string name) {
  return std::make_unique<CpuEvent>(std::move(name));
}

// ---- streams ----

CpuStream::CpuStream(StreamOptions options, std::function<void()> prepare)
    : options_(std::move(options)),
      prepare_(std::move(prepare)),
      delays_(seeded(options_.delay_seed.value_or(0))),
      longest_delay_us_(longest_delays_us[delays_() % std::size(longest_delays_us)]) {}

void CpuStream::record(Event::Implementation& event) { static_cast<CpuEvent&>(event).record(progress_, submitted_); }

void CpuStream::wait(Event::Implementation& event) {
  if (event.complete() && !event.failure()) return;
  if (event.device() != device()) return submit([this, &event] { await(event); });
  submit([this, record = static_cast<CpuEvent&>(event).latest()] { await(record); });
}

// In stretches, of which one that took far longer than it should was no waiting: the process was stopped.
template <typename Wait>
bool CpuStream::timed(const Wait& wait_until) {
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  const auto timeout = std::min(options_.wait_timeout, longest_wait);
  const Clock::duration stretch =
      std::clamp<Clock::duration>(timeout / 8, std::chrono::milliseconds(1), std::chrono::seconds(1));
  Clock::time_point deadline = start + timeout;
  bool came = false;
  for (Clock::time_point now = start; !came;) {
    const Clock::time_point before = now;
    came = wait_until(std::min(deadline, now + stretch));
    now = Clock::now();
    if (now - before > 2 * stretch) deadline += now - before;
    if (now < deadline) continue;
    if (came || !options_.goes_on || !options_.goes_on()) break;
    deadline = now + timeout;
  }
  const std::chrono::nanoseconds spent = Clock::now() - start;
  waited_.fetch_add(spent.count(), std::memory_order_relaxed);
  return came;
}

void CpuStream::await(const CpuEvent::Record& record) {
  const bool came = timed([&](auto deadline) { return record.progress->wait_for(record.position, deadline); });
  if (!came) give_up(*record.event_name);
  if (const std::exception_ptr failure = record.progress->failure(record.position)) std::rethrow_exception(failure);
}

void CpuStream::await(const Event::Implementation& event) {
  if (!timed([&](auto deadline) { return event.wait_on_host(deadline); })) give_up(event.name());
  if (const std::exception_ptr failure = event.failure()) std::rethrow_exception(failure);
}

std::optional<std::chrono::nanoseconds> CpuStream::waited() const {
  return std::chrono::nanoseconds(waited_.load(std::memory_order_relaxed));
}

void CpuStream::give_up(const std::string& event) const {
  throw Error(
      fmt::format("stream \"{}\" waited {} ms for event \"{}\" in vain: the stream that recorded it is stuck or "
                  "slower than wait_timeout allows",
                  name(), options_.wait_timeout.count(), event));
}

void CpuStream::wait_for_all() { progress_->wait_for(submitted_, std::nullopt); }

std::exception_ptr CpuStream::failure() const { return progress_->failure(); }

void CpuStream::run_task(Task& task) noexcept {
  if (!progress_->failed()) {
    if (options_.delay_seed) delay();
    try {
      if (prepare_) prepare_();
      task();
    } catch (...) {
      keep_failure(std::current_exception());
    }
  }
  task.reset();  // before the progress: who waited may take apart what the task captured
  progress_->advance();
}

void CpuStream::keep_failure(std::exception_ptr exception) noexcept {
  progress_->fail(exception);
  if (options_.on_failure) options_.on_failure(std::move(exception));
}

void CpuStream::delay() { std::this_thread::sleep_for(std::chrono::microseconds(delays_() % (longest_delay_us_ + 1))); }

namespace {

// Without a thread: every task runs on the host thread that submits it, before submit() returns.
class ImmediateStream final : public CpuStream {
 public:
  using CpuStream::CpuStream;

  void submit(Task task) override {
    count_submission();
    run_task(task);
  }
};

// With a worker thread. Tasks wait in a ring whose slots are used in turn: task n lives in slot n modulo the capacity
// from its submission until it has run, so the ring is full when `capacity` tasks have not run yet.
class QueuedStream final : public CpuStream {
 public:
  QueuedStream(StreamOptions options, std::function<void()> prepare);
  ~QueuedStream() override;

  void submit(Task task) override;

 private:
  void work();
  void wait_for_room(std::uint64_t needed);    // until so many tasks have run, or more
  bool wait_for_task(std::uint64_t position);  // false when the stream ends before it is submitted
  Task& slot(std::uint64_t position) { return ring_[position % ring_.size()]; }

  std::vector<Task> ring_;
  std::mutex mutex_;  // of the four below
  std::condition_variable arrival_;
  std::uint64_t arrived_ = 0;
  bool idle_ = false;
  bool ending_ = false;
  std::thread worker_;  // last: it uses all of the above
};

std::size_t checked_capacity(const StreamOptions& options) {
  if (options.queue_capacity == 0) {
    throw UsageError(fmt::format("stream \"{}\": queue_capacity must be at least 1", options.name));
  }
  return options.queue_capacity;
}

QueuedStream::QueuedStream(StreamOptions options, std::function<void()> prepare)
    : CpuStream(std::move(options), std::move(prepare)),
      ring_(checked_capacity(this->options())),
      worker_([this] { work(); }) {}

QueuedStream::~QueuedStream() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
    arrival_.notify_one();
  }
  worker_.join();
}

void QueuedStream::submit(Task task) {
  const std::uint64_t position = submitted();
  if (position >= ring_.size()) wait_for_room(position - ring_.size() + 1);
  slot(position) = std::move(task);
  count_submission();
  const std::lock_guard lock(mutex_);
  arrived_ = position + 1;
  if (idle_) arrival_.notify_one();
}

// Where the ring is full, until half of it is empty, so that the host does not wake up for every task.
void QueuedStream::wait_for_room(std::uint64_t needed) {
  if (progress().completed() < needed) progress().wait_for(needed + ring_.size() / 2, std::nullopt);
}

void QueuedStream::work() {
  ::pthread_setname_np(::pthread_self(), name().substr(0, longest_thread_name).c_str());
  for (std::uint64_t position = 0; wait_for_task(position); ++position) run_task(slot(position));
}

bool QueuedStream::wait_for_task(std::uint64_t position) {
  std::unique_lock lock(mutex_);
  idle_ = true;
  arrival_.wait(lock, [&] { return arrived_ > position || ending_; });
  idle_ = false;
  return arrived_ > position;
}

}  // namespace

std::unique_ptr<CpuStream> make_issuing_stream(StreamOptions options, std::function<void()> prepare) {
  if (options.mode == StreamMode::immediate) {
    return std::make_unique<ImmediateStream>(std::move(options), std::move(prepare));
  }
  return std::make_unique<QueuedStream>(std::move(options), std::move(prepare));
}

std::unique_ptr<Stream::Implementation> make_cpu_stream(StreamOptions options) {
  return make_issuing_stream(std::move(options), nullptr);
}

}  // namespace tessera::device
