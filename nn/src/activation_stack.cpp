// The top of the stack moves in steps: every part starts on a cache line, and on a CUDA device where the algorithms of
// products may count on all that they look for. Then where a part lies chooses none, and with it no bits.
#include "tessera/nn/activation_stack.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>

#include "tessera/base/error.hpp"

namespace tessera::nn {

namespace {

Bytes alignment_on(DeviceKind device) { return device == DeviceKind::cpu ? Bytes(64) : Bytes(256); }

}  // namespace

ActivationStack::ActivationStack(std::span<std::byte> memory, DeviceKind device) : memory_(memory), device_(device) {
  const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
  const Bytes alignment = alignment_on(device);
  if (address == 0 || address % alignment.count() != 0) {
    throw UsageError(
        fmt::format("activation stack: the memory must start on {} bytes, but starts at {:#x}; take it from an Arena",
                    alignment.count(), address));
  }
}

ActivationStack::ActivationStack(std::span<std::byte> memory, ActivationStack& scratch)
    : ActivationStack(scratch.counts_only() ? ActivationStack(scratch.device())
                                            : ActivationStack(memory, scratch.device())) {
  scratch_ = &scratch;
}

void* ActivationStack::push_bytes(Bytes size) {
  if (scratch_ != nullptr && scopes_ > 0) return scratch_->push_bytes(size);
  const Bytes top = used_ + round_up(size, alignment_on(device_));
  if (!counts_only() && top.count() > memory_.size()) {
    throw UsageError(
        fmt::format("activation stack: {} bytes are needed, but the block has {}; plan it with a counting stack for "
                    "the largest batch",
                    top.count(), memory_.size()));
  }
  std::byte* const part = counts_only() ? nullptr : memory_.data() + used_.count();
  used_ = top;
  peak_ = std::max(peak_, top);
  return part;
}

void ActivationStack::rewind(Bytes mark) {
  if (mark > used_) {
    throw InternalError(
        fmt::format("activation stack: rewound to {} bytes, but only {} are in use", mark.count(), used_.count()));
  }
  used_ = mark;
}

}  // namespace tessera::nn
