// The switch itself, which no compiler writes.
#include "context.hpp"

#ifdef __x86_64__

#include <cstdint>

extern "C" void tessera_emulated_switch(void** left, void* next);

asm(R"(
  .text
  .globl tessera_emulated_switch
  .hidden tessera_emulated_switch
  .type tessera_emulated_switch, @function
tessera_emulated_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
  .size tessera_emulated_switch, .-tessera_emulated_switch
)");

namespace emulated {

// A function begins with its caller's address, here none, on top of the stack, 8 bytes off a multiple of 16.
Context::Context(std::byte* stack, std::size_t bytes, void (*entry)()) {
  constexpr std::size_t kept = 6;
  const std::uintptr_t top = (reinterpret_cast<std::uintptr_t>(stack) + bytes) & ~std::uintptr_t{15};
  auto* const words = reinterpret_cast<void**>(top) - (kept + 2);
  for (std::size_t i = 0; i < kept + 2; ++i) words[i] = nullptr;
  words[kept] = reinterpret_cast<void*>(entry);
  stack_pointer_ = words;
}

void Context::leave_for(Context& next) { tessera_emulated_switch(&stack_pointer_, next.stack_pointer_); }

}  // namespace emulated

#else

namespace emulated {

Context::Context(std::byte* stack, std::size_t bytes, void (*entry)()) {
  ::getcontext(&saved_);
  saved_.uc_stack.ss_sp = stack;
  saved_.uc_stack.ss_size = bytes;
  saved_.uc_link = nullptr;
  ::makecontext(&saved_, entry, 0);
  saved_.uc_stack = {};  // AddressSanitizer would wipe its notes of a stack that is named at every switch
}

void Context::leave_for(Context& next) { ::swapcontext(&saved_, &next.saved_); }

}  // namespace emulated

#endif
