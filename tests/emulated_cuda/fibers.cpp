// The scheduler of a block's fibers, and the notes that sanitizers need when a stack changes.
#include "fibers.hpp"

#include <sys/mman.h>
#include <ucontext.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "../sanitizers/sanitizers.hpp"

#if TESSERA_THREAD_SANITIZER
#include <sanitizer/tsan_interface.h>
#endif
#if TESSERA_ADDRESS_SANITIZER
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace emulated {
namespace {

// AddressSanitizer's notes of a stack are wiped for each fiber, which takes as long as the stack is large.
constexpr std::size_t stack_bytes = 128 * 1024;
constexpr std::size_t guard_bytes = 4096;  // below it, where what grows too far ends the program
constexpr unsigned warp_threads = 32;

enum class Waits { no, warp, block };

class Block;

// A fiber stands on this; ThreadSanitizer has a name of it.
struct Stack {
  std::byte* memory = nullptr;
  void* tsan = nullptr;
};

// Making stacks is what costs most here, so those of ended fibers are for the next ones: of their own host thread, and
// when that ends, of others.
class LeftStacks {
 public:
  LeftStacks() = default;
  LeftStacks(const LeftStacks&) = delete;
  LeftStacks& operator=(const LeftStacks&) = delete;
  ~LeftStacks() {
    for (const Stack& stack : left_) {
#if TESSERA_THREAD_SANITIZER
      __tsan_destroy_fiber(stack.tsan);
#endif
      ::munmap(stack.memory - guard_bytes, guard_bytes + stack_bytes);
    }
  }

  void leave(const std::vector<Stack>& stacks) {
    const std::lock_guard lock(mutex_);
    left_.insert(left_.end(), stacks.begin(), stacks.end());
  }
  std::optional<Stack> take() {
    const std::lock_guard lock(mutex_);
    if (left_.empty()) return std::nullopt;
    const Stack stack = left_.back();
    left_.pop_back();
    return stack;
  }

 private:
  std::mutex mutex_;
  std::vector<Stack> left_;
};

LeftStacks& left_stacks() {
  static LeftStacks left;
  return left;
}

class Stacks {
 public:
  Stacks() { left_stacks(); }  // ends after this
  Stacks(const Stacks&) = delete;
  Stacks& operator=(const Stacks&) = delete;
  ~Stacks() { left_stacks().leave(free_); }
  Stack take() {
    if (free_.empty()) {
      const std::optional<Stack> left = left_stacks().take();
      return left ? *left : made();
    }
    const Stack stack = free_.back();
    free_.pop_back();
    return stack;
  }
  void give_back(const Stack& stack) { free_.push_back(stack); }

 private:
  static Stack made() {
    void* const memory = ::mmap(nullptr, guard_bytes + stack_bytes, PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
    if (memory == MAP_FAILED || ::mprotect(memory, guard_bytes, PROT_NONE) != 0) {
      std::perror("emulated device: a fiber's stack");
      std::abort();
    }
    Stack stack{.memory = static_cast<std::byte*>(memory) + guard_bytes};
#if TESSERA_THREAD_SANITIZER
    stack.tsan = __tsan_create_fiber(0);
#endif
    return stack;
  }

  std::vector<Stack> free_;
};

thread_local Stacks stacks;

// A stack and a place in it.
class Fiber {
 public:
  explicit Fiber(Block& block);
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  void resume();  // from the scheduler, until the fiber yields or ends
  void yield();   // from the fiber
  void finish();  // from the fiber, for good

  Waits waits = Waits::no;
  bool ended = false;
  Thread thread{};

 private:
  static void enter(unsigned high, unsigned low);

  Block& block_;
  Stack stack_;
  ucontext_t context_{};
  ucontext_t scheduler_{};
#if TESSERA_THREAD_SANITIZER
  void* tsan_scheduler_ = nullptr;
#endif
#if TESSERA_ADDRESS_SANITIZER
  void* asan_ = nullptr;
  void* asan_scheduler_ = nullptr;
  const void* scheduler_stack_ = nullptr;
  std::size_t scheduler_stack_bytes_ = 0;
#endif
};

class Block {
 public:
  Block(const cudaLaunchConfig_t& configuration, const std::function<void()>& thread);
  void run(uint3 block);

  void run_threads(Fiber& fiber);  // on the fiber: threads that nobody has begun, one after the other

 private:
  unsigned threads() const { return dim_.x * dim_.y * dim_.z; }
  bool start_one();
  bool release();
  bool release(Waits kind, unsigned first, unsigned end);
  [[noreturn]] void deadlock() const;
  Thread thread_at(unsigned rank) const;

  const std::function<void()>& thread_;
  dim3 grid_;
  dim3 dim_;
  uint3 block_{};
  std::vector<std::byte> shared_;
  std::byte* shared_begin_;
  std::vector<std::uint64_t> exchange_;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  unsigned next_ = 0;
};

thread_local Fiber* running = nullptr;

Fiber::Fiber(Block& block) : block_(block), stack_(stacks.take()) {
  ::getcontext(&context_);
  context_.uc_stack.ss_sp = stack_.memory;
  context_.uc_stack.ss_size = stack_bytes;
  context_.uc_link = nullptr;
  const auto address = reinterpret_cast<std::uintptr_t>(this);
  ::makecontext(&context_, reinterpret_cast<void (*)()>(&Fiber::enter), 2, static_cast<unsigned>(address >> 32),
                static_cast<unsigned>(address));
#if TESSERA_ADDRESS_SANITIZER
  // The fiber before ended amid its frames, and left their notes. Of a context that names its stack, notes would be
  // wiped at every switch.
  __asan_unpoison_memory_region(stack_.memory, stack_bytes);
  context_.uc_stack = {};
#endif
}

Fiber::~Fiber() { stacks.give_back(stack_); }

void Fiber::enter(unsigned high, unsigned low) {
  auto& self = *reinterpret_cast<Fiber*>(static_cast<std::uintptr_t>(high) << 32 | low);
#if TESSERA_ADDRESS_SANITIZER
  __sanitizer_finish_switch_fiber(nullptr, &self.scheduler_stack_, &self.scheduler_stack_bytes_);
#endif
  self.block_.run_threads(self);
  self.finish();
}

// Device code sees this as its place.
void show(const Thread& thread) {
  threadIdx = thread.thread;
  blockIdx = thread.block;
  blockDim = thread.block_dim;
  gridDim = thread.grid_dim;
}

void Fiber::resume() {
  Fiber* const before = std::exchange(running, this);
  show(thread);
#if TESSERA_THREAD_SANITIZER
  tsan_scheduler_ = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(stack_.tsan, 0);
#endif
#if TESSERA_ADDRESS_SANITIZER
  __sanitizer_start_switch_fiber(&asan_scheduler_, stack_.memory, stack_bytes);
#endif
  ::swapcontext(&scheduler_, &context_);
#if TESSERA_ADDRESS_SANITIZER
  __sanitizer_finish_switch_fiber(asan_scheduler_, nullptr, nullptr);
#endif
  running = before;
}

void Fiber::yield() {
#if TESSERA_THREAD_SANITIZER
  __tsan_switch_to_fiber(tsan_scheduler_, 0);
#endif
#if TESSERA_ADDRESS_SANITIZER
  __sanitizer_start_switch_fiber(&asan_, scheduler_stack_, scheduler_stack_bytes_);
#endif
  ::swapcontext(&context_, &scheduler_);
#if TESSERA_ADDRESS_SANITIZER
  __sanitizer_finish_switch_fiber(asan_, &scheduler_stack_, &scheduler_stack_bytes_);
#endif
}

void Fiber::finish() {
  ended = true;
#if TESSERA_THREAD_SANITIZER
  __tsan_switch_to_fiber(tsan_scheduler_, 0);
#endif
#if TESSERA_ADDRESS_SANITIZER
  __sanitizer_start_switch_fiber(nullptr, scheduler_stack_, scheduler_stack_bytes_);
#endif
  ::setcontext(&scheduler_);
}

Block::Block(const cudaLaunchConfig_t& configuration, const std::function<void()>& thread)
    : thread_(thread),
      grid_(configuration.gridDim),
      dim_(configuration.blockDim),
      shared_(configuration.dynamicSmemBytes + 128),
      exchange_(threads()) {
  const auto address = reinterpret_cast<std::uintptr_t>(shared_.data());
  shared_begin_ = shared_.data() + (128 - address % 128) % 128;
}

Thread Block::thread_at(unsigned rank) const {
  return {.thread = {rank % dim_.x, rank / dim_.x % dim_.y, rank / (dim_.x * dim_.y)},
          .block = block_,
          .block_dim = dim_,
          .grid_dim = grid_,
          .dynamic_shared = shared_begin_,
          .rank = rank,
          .exchange = const_cast<std::uint64_t*>(exchange_.data())};
}

void Block::run(uint3 block) {
  block_ = block;
  next_ = 0;
  fibers_.clear();
  while (start_one() || release()) {
  }
}

bool Block::start_one() {
  if (next_ == threads()) return false;
  fibers_.push_back(std::make_unique<Fiber>(*this));
  fibers_.back()->resume();
  return true;
}

void Block::run_threads(Fiber& fiber) {
  while (next_ < threads()) {
    fiber.thread = thread_at(next_++);
    show(fiber.thread);
    thread_();
  }
}

// Lets go on whoever waits with all others of its warp or block; false when everybody has ended.
bool Block::release() {
  bool alive = false;
  for (const auto& fiber : fibers_) alive = alive || !fiber->ended;
  if (!alive) return false;
  if (release(Waits::block, 0, threads())) return true;
  bool released = false;
  for (unsigned first = 0; first < threads(); first += warp_threads) {
    released |= release(Waits::warp, first, first + warp_threads);
  }
  if (!released) deadlock();
  return true;
}

bool Block::release(Waits kind, unsigned first, unsigned end) {
  std::vector<Fiber*> together;
  for (const auto& fiber : fibers_) {
    if (fiber->ended || fiber->thread.rank < first || fiber->thread.rank >= end) continue;
    if (fiber->waits != kind) return false;
    together.push_back(fiber.get());
  }
  for (Fiber* fiber : together) fiber->waits = Waits::no;
  for (Fiber* fiber : together) fiber->resume();
  return !together.empty();
}

void Block::deadlock() const {
  unsigned at_warp = 0;
  unsigned at_block = 0;
  for (const auto& fiber : fibers_) {
    if (fiber->ended) continue;
    (fiber->waits == Waits::block ? at_block : at_warp) += 1;
  }
  std::fprintf(stderr, "emulated kernel: %u threads of a block wait at __syncthreads, %u at a warp's barrier: a hang\n",
               at_block, at_warp);
  std::abort();
}

void wait_as(Waits kind) {
  running->waits = kind;
  running->yield();
}

}  // namespace

Thread& self() { return running->thread; }
void block_barrier() { wait_as(Waits::block); }
void warp_barrier() { wait_as(Waits::warp); }

void run_grid(const cudaLaunchConfig_t& configuration, const std::function<void()>& thread) {
  Block block(configuration, thread);
  for (unsigned z = 0; z < configuration.gridDim.z; ++z) {
    for (unsigned y = 0; y < configuration.gridDim.y; ++y) {
      for (unsigned x = 0; x < configuration.gridDim.x; ++x) block.run({x, y, z});
    }
  }
}

}  // namespace emulated
