// Where a fiber goes on: its registers and its stack. Switching saves what a called function has to keep (System V ABI,
// x86-64: rbx, rbp, r12 to r15, and the stack) and costs some nanoseconds; swapcontext(), which stands in for it on
// other processors, asks the kernel for the mask of signals each time, and takes 40 times as long.
#pragma once

#include <cstddef>

#include "../sanitizers/sanitizers.hpp"

#ifndef __x86_64__
#include <ucontext.h>
#endif

namespace emulated {

class Context {
 public:
  // Whatever runs when it is first left.
  Context() = default;
  // The beginning of `entry` on a stack of its own, from which it must not return.
  Context(std::byte* stack, std::size_t bytes, void (*entry)());
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  // Leaves this one, which runs, for another; returns when somebody goes on here. It begins on one fiber's notes of the
  // stack and would end on another's.
  TESSERA_UNSEEN_BY_THREAD_SANITIZER void leave_for(Context& next);

 private:
#ifdef __x86_64__
  void* stack_pointer_ = nullptr;  // with the kept registers on top, and behind them where to go on
#else
  ucontext_t saved_{};
#endif
};

}  // namespace emulated
