// The top of the stack moves in steps of 64 bytes, so that every part starts on a cache line.
#include "tessera/nn/activation_stack.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>

#include "tessera/base/error.hpp"

namespace tessera::nn {

namespace {

constexpr Bytes alignment(64);

}  // namespace

ActivationStack::ActivationStack(std::span<std::byte> memory, DeviceKind device) : memory_(memory), device_(device) {
  const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
  if (address == 0 || address % alignment.count() != 0) {
    throw UsageError(
        fmt::format("activation stack: the memory must start on {} bytes, but starts at {:#x}; take it from an Arena",
                    alignment.count(), address));
  }
}

void* ActivationStack::push_bytes(Bytes size) {
  const Bytes top = used_ + round_up(size, alignment);
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
