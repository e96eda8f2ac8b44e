// A cudaStream_t and marks in its order, as owners: what a CUDA Stream issues its work to. The header needs no toolkit.
//
// Thread safety: one thread at a time issues to a queue; a mark is recorded by one thread at a time, and may be waited
// for and queried from any.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "tessera/base/bytes.hpp"
#include "tessera/device/device.hpp"
#include "tessera/device/stream.hpp"

namespace tessera::device {

// The device that the calling thread's CUDA calls go to. A thread that makes calls without having said so opens a
// context on the first device, half a gigabyte of its memory.
void make_current(Device device);

// A cudaEvent_t without timing.
class CudaMark {
 public:
  explicit CudaMark(Device device);
  ~CudaMark();
  CudaMark(const CudaMark&) = delete;
  CudaMark& operator=(const CudaMark&) = delete;

  Device device() const { return device_; }
  void* native() const { return event_; }
  bool complete() const;  // throws Error when the device has failed
  // Blocks the host; false when the deadline passed first.
  bool wait_on_host(std::chrono::steady_clock::time_point deadline) const;

 private:
  Device device_;
  void* event_ = nullptr;
};

// A QueueCheck is what else must hold before a queue counts as synchronised; what it throws is the stream's failure.
class QueueCheck {
 public:
  virtual ~QueueCheck() = default;
  virtual void settle() = 0;
};

class CudaQueue {
 public:
  CudaQueue(Device device, StreamPriority priority);
  CudaQueue(Device device, void* stream);  // a cudaStream_t of somebody's, which outlives it
  ~CudaQueue();                            // waits for what was issued
  CudaQueue(const CudaQueue&) = delete;
  CudaQueue& operator=(const CudaQueue&) = delete;

  Device device() const { return device_; }
  void* native() const { return stream_; }

  // Memory of the device for what one kernel leaves to the next, in this queue's order.
  static constexpr Bytes workspace_bytes{64 * 1024};
  void* workspace() const { return workspace_; }

  // The functions below enqueue and do not block the host. The calling thread's current device must be this one.
  void record(CudaMark& mark);
  void wait(const CudaMark& mark);
  void copy(void* to, const void* from, Bytes size);  // between any two places; pageable host memory blocks
  void fill(void* data, int value, Bytes size);

  void synchronize();
  // The next synchronize() ends with this, and forgets it. The same one twice is one.
  void add_check(const std::shared_ptr<QueueCheck>& check);

 private:
  Device device_;
  void* stream_ = nullptr;
  bool owned_;
  void* workspace_ = nullptr;
  std::vector<std::shared_ptr<QueueCheck>> checks_;
};

// Lets kernels and copies of each of the devices 0 … count - 1 reach the others' memory. Throws UnavailableError,
// naming a pair, where the machine cannot.
void share_memory(int count);

// The queue behind a CUDA stream; UsageError for a stream of the CPU. Issue to it from the stream's tasks only.
CudaQueue& cuda_queue(Stream& stream);

}  // namespace tessera::device
