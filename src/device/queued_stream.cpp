// A CPU stream with a worker thread. Tasks wait in a ring whose slots are used in turn: task n lives in slot n modulo
// the capacity from its submission until it has run, so the ring is full when `capacity` tasks have not run yet.
#include <fmt/format.h>
#include <pthread.h>

#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "device/cpu_stream.hpp"
#include "tessera/base/error.hpp"

namespace tessera::device {
namespace {

constexpr std::size_t longest_thread_name = 15;  // Linux

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

std::unique_ptr<CpuStream> make_queued_stream(StreamOptions options, std::function<void()> prepare) {
  return std::make_unique<QueuedStream>(std::move(options), std::move(prepare));
}

}  // namespace tessera::device
