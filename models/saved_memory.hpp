// Where a unit's forward window pushes what its backward one needs: on its model's stack, or in the unit's own part of
// the plan's memory (UnitOptions::saved), which may go to the host's in between (Offload::activations). That part is
// counted by a pass on a stack that counts; scratch memory stays on the model's stack.
#pragma once

#include <cstddef>
#include <span>

#include "tessera/kernels/elementwise.hpp"
#include "tessera/nn/activation_stack.hpp"
#include "tessera/shard/window.hpp"

namespace models {

class SavedMemory {
 public:
  tessera::Bytes bytes() const { return bytes_; }  // of the latest counted forward window

  // compute(stack) of a forward window, with the stack to push on.
  template <typename Compute>
  void forward(tessera::Window& window, tessera::nn::ActivationStack& stack, const Compute& compute) {
    const std::span<std::byte> memory = stack.counts_only() ? std::span<std::byte>() : window.saved();
    if (memory.empty() && !stack.counts_only()) return compute(stack);  // which pushes nothing
    tessera::nn::ActivationStack own(memory, stack);
    compute(own);
    bytes_ = own.peak();
  }

 private:
  tessera::Bytes bytes_;
};

// Enqueues; a pass that only counts copies nothing.
template <typename T>
void copy_values(tessera::Window& window, T* to, const T* from, std::size_t count) {
  if (window.computes()) tessera::kernels::copy(window.stream(), to, from, tessera::Bytes(sizeof(T) * count));
}

}  // namespace models
