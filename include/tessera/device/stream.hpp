// An ordered queue of work on a device. On the CPU it is a worker thread with a bounded ring of tasks (`queued`),
// or it runs each task at once on the calling thread (`immediate`); both keep the semantics of a CUDA stream.
//
// Invariants: work runs in the order of submission, one piece at a time. When a task throws, the first exception is
//   kept, `on_failure` is told once, later tasks are dropped, and events still complete, so nobody hangs. A stream that
//   waits for an event which a failed stream recorded after its failure fails, too, with the same exception: what the
//   event stands for was not done.
// Thread safety: one host thread at a time submits. Destruction drains the queue and joins the worker.
// Allocation: only on construction.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "tessera/device/device.hpp"
#include "tessera/device/event.hpp"
#include "tessera/device/task.hpp"

#pragma GCC visibility push(default)

namespace tessera {

enum class StreamMode { queued, immediate };

// Which of a device's streams goes first where both could: a hint that the CPU does not need.
enum class StreamPriority { normal, high };

struct StreamOptions {
  std::string name = "stream";  // appears in errors and traces, and as the thread's name
  StreamMode mode = StreamMode::queued;
  StreamPriority priority = StreamPriority::normal;
  // On an immediate stream collectives may be enqueued, for which the calling thread then waits until all peers have
  // come.
  bool meets_peers = false;
  std::size_t queue_capacity = 256;  // tasks; submit() blocks while the ring is full, and then until half is free
  // For waits on events, without the time in which the process was stopped; the error names stream and event. Where
  // goes_on says true after it, a wait lasts as long again; called by whoever waits, must not throw.
  std::chrono::milliseconds wait_timeout{600'000};
  std::function<bool()> goes_on = nullptr;
  // Test mode: sleeps before each task, by seed; up to 0, 30 or 300 µs, so that streams differ in pace.
  std::optional<std::uint64_t> delay_seed = std::nullopt;
  // A CUDA stream may issue to a cudaStream_t of the program's own, which outlives this. What the program enqueues
  // there itself, and what is submitted here, keep the order in which the host issues both: for Window::join(), say.
  // Default: a new one.
  std::optional<void*> cuda_stream = std::nullopt;
  std::function<void(std::exception_ptr)> on_failure =
      nullptr;  // called once, where the failed task ran; must not throw
};

class Stream {
 public:
  Stream(Device device, StreamOptions options);  // throws UnavailableError for a device that this build cannot drive
  Stream(Stream&&) noexcept;
  Stream& operator=(Stream&&) noexcept;
  ~Stream();

  Device device() const;
  const std::string& name() const;
  StreamMode mode() const;
  bool meets_peers() const;  // whether collectives may be enqueued on it: a queued one, or one whose options say so

  // Enqueues a host task. Does not synchronise; an immediate stream runs it now and does not throw what the task
  // throws: see failure(). On a CUDA stream the task does not compute: it issues work to native_stream() (cuda.hpp).
  void submit(Task task);

  void record(Event& event);  // does not synchronise
  // Later work waits for the event's latest record. Throws UsageError when never recorded, and for an event of another
  // device, which only an immediate CPU stream, that is the host itself, may wait for.
  void wait(Event& event);

  // Blocks the host until everything submitted has run; rethrows the stream's first failure.
  void synchronize();

  // How long the thread that runs this stream's work has waited for events so far, on the CPU: for a compute stream,
  // what was not hidden of communication, and of ranks that are late. None on a CUDA stream, whose waits the host does
  // not see. Does not synchronise.
  std::optional<std::chrono::nanoseconds> waited() const;

  std::exception_ptr failure() const;  // null while nothing failed
  void rethrow_failure() const;        // throws the first failure, if any; does not synchronise

  // Expires when the stream ends; one that is moved lives on.
  std::weak_ptr<const void> life() const { return life_; }

  class [[gnu::visibility("hidden")]] Implementation;
  Implementation& implementation() { return *implementation_; }

 private:
  std::unique_ptr<Implementation> implementation_;
  std::shared_ptr<const void> life_ = std::make_shared<char>();
};

}  // namespace tessera

#pragma GCC visibility pop
