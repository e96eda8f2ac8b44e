// Where layers keep what the backward pass needs, and their scratch memory: one block of bytes, used as a stack and
// reused every step. The same calls run twice: once on a stack without memory, which only counts, so that the bytes
// are known before anything is allocated; then on the block itself.
//
// Memory is handed out at once and used by work on the compute stream in the order of enqueueing, so giving it back and
// handing it out again needs no wait. Thread safety: none; it belongs to its rank's thread.
#pragma once

#include <cstddef>
#include <span>

#include "tessera/base/bytes.hpp"
#include "tessera/device/device.hpp"
#include "tessera/nn/view.hpp"

#pragma GCC visibility push(default)

namespace tessera::nn {

class ActivationStack {
 public:
  // Counts only: what it hands out has the right shape and no memory. Layers need other scratch memory on other kinds
  // of device, so it counts for one.
  explicit ActivationStack(DeviceKind device = DeviceKind::cpu) : device_(device) {}
  // Hands out parts of `memory`, which must start on as many bytes as they do and belong to that kind of device.
  explicit ActivationStack(std::span<std::byte> memory, DeviceKind device = DeviceKind::cpu);
  // Hands out parts of memory of its own beside another stack, which outlives it: what is pushed in a ScratchScope
  // stands on that one. Counts where that does, without memory.
  ActivationStack(std::span<std::byte> memory, ActivationStack& scratch);

  // Aligned to 64 bytes, on CUDA devices to 256; the elements are undefined. Throws UsageError, with the bytes needed
  // and those there, when the block is full: then it was planned for another shape.
  template <typename T>
  std::span<T> push(std::size_t count) {
    return {static_cast<T*>(push_bytes(Bytes(count * sizeof(T)))), count};
  }
  template <typename T>
  MatrixView<T> push(std::size_t rows, std::size_t columns) {
    return {push<T>(rows * columns).data(), rows, columns};
  }

  // Everything that was pushed since a mark is given back by going back to it.
  Bytes mark() const { return used_; }
  void rewind(Bytes mark);  // throws InternalError for a mark above the top

  DeviceKind device() const { return device_; }
  bool counts_only() const { return memory_.data() == nullptr; }
  Bytes used() const { return used_; }
  Bytes peak() const { return peak_; }  // the most that was in use: what the block must have

 private:
  friend class ScratchScope;
  void* push_bytes(Bytes size);

  std::span<std::byte> memory_;
  DeviceKind device_;
  Bytes used_;
  Bytes peak_;
  ActivationStack* scratch_ = nullptr;  // null: this one
  std::size_t scopes_ = 0;              // that are open, of scratch memory elsewhere
};

// Gives back what a scope pushed: for scratch memory.
class ScratchScope {
 public:
  explicit ScratchScope(ActivationStack& stack)
      : asked_(stack), stack_(stack.scratch_ == nullptr ? stack : *stack.scratch_), mark_(stack_.mark()) {
    ++asked_.scopes_;
  }
  ScratchScope(const ScratchScope&) = delete;
  ScratchScope& operator=(const ScratchScope&) = delete;
  ~ScratchScope() {
    --asked_.scopes_;
    stack_.rewind(mark_);
  }

 private:
  ActivationStack& asked_;
  ActivationStack& stack_;
  Bytes mark_;
};

}  // namespace tessera::nn

#pragma GCC visibility pop
