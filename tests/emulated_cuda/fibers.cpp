// The scheduler of a block's fibers, and the notes that sanitizers need when a stack changes.
#include "fibers.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "../sanitizers/sanitizers.hpp"
#include "context.hpp"

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
constexpr std::size_t gap_bytes = TESSERA_ADDRESS_SANITIZER ? 0 : 256;  // behind each part of shared memory

// ThreadSanitizer is told which fiber runs, and the only orders that there are.
#if TESSERA_THREAD_SANITIZER
void* running_fiber() { return __tsan_get_current_fiber(); }
// It begins on one fiber's notes of the stack and ends on another's.
TESSERA_UNSEEN_BY_THREAD_SANITIZER void switch_to(void* fiber) {
  __tsan_switch_to_fiber(fiber, __tsan_switch_to_fiber_no_sync);
}
void release(std::uint64_t& order) { __tsan_release(&order); }
void acquire(std::uint64_t& order) { __tsan_acquire(&order); }
#else
void* running_fiber() { return nullptr; }
void switch_to(void*) {}
void release(std::uint64_t&) {}
void acquire(std::uint64_t&) {}
#endif

// A barrier has two orders in turn: some may be on their way to the next one while others have not left the last one
// yet.
using Orders = std::array<std::uint64_t, 2>;

// Numbers 0 … count - 1, each once, in an order that is drawn.
class Drawn {
 public:
  Drawn(std::uint64_t count, std::minstd_rand& random)
      : count_(count), step_(random() % count), first_(random() % count) {
    while (std::gcd(step_, count) != 1) ++step_;
  }
  std::uint64_t operator[](std::uint64_t i) const { return (first_ + i * step_) % count_; }

 private:
  std::uint64_t count_;
  std::uint64_t step_;
  std::uint64_t first_;
};

const char* given_seed() {
  static const char* const text = std::getenv("TESSERA_EMULATED_SEED");
  return text;
}
bool finds_races() { return TESSERA_THREAD_SANITIZER && given_seed() != nullptr; }

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
  // To ThreadSanitizer a stack has done what was done on it: it is not for other blocks of the same grid, unless that
  // is very large.
  void give_back(const Stack& stack) {
    constexpr std::size_t most = 2048;
    (finds_races() && used_.size() < most ? used_ : free_).push_back(stack);
  }
  void end_grid() {
    free_.insert(free_.end(), used_.begin(), used_.end());
    used_.clear();
  }

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
  std::vector<Stack> used_;
};

thread_local Stacks stacks;

// A stack and a place in it.
class Fiber {
 public:
  explicit Fiber(Block& block);
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  void resume();                                     // from the scheduler, until the fiber yields or ends
  void yield();                                      // from the fiber
  TESSERA_UNSEEN_BY_THREAD_SANITIZER void finish();  // from the fiber, for good

  Block& block() { return block_; }

  Thread thread{};
  // These belong to the meeting of its warp that it waits for.
  unsigned mask = 0;
  void* shown = nullptr;
  void (*work)(Shown) = nullptr;
  // So many barriers have been passed.
  std::size_t of_block = 0;
  std::size_t of_warp = 0;

 private:
  // The fiber that runs begins here. Neither of these two returns, for which ThreadSanitizer's notes of its stack wait.
  TESSERA_UNSEEN_BY_THREAD_SANITIZER static void enter();

  Block& block_;
  Stack stack_;
  Context context_;
  Context scheduler_;
  void* tsan_scheduler_ = nullptr;
#if TESSERA_ADDRESS_SANITIZER
  void* asan_ = nullptr;
  void* asan_scheduler_ = nullptr;
  const void* scheduler_stack_ = nullptr;
  std::size_t scheduler_stack_bytes_ = 0;
#endif
};

// A grid's beginning and end, which all of its threads see.
struct Grid {
  const cudaLaunchConfig_t& configuration;
  const std::function<void()>& thread;
  std::uint64_t begun = 0;
  std::uint64_t ended = 0;
};

class Block {
 public:
  Block(Grid& grid, uint3 block, std::minstd_rand& random);
  void run();

  // On a fiber.
  void run_threads(Fiber& fiber);  // such as nobody has begun, one after the other
  void meet_block(Fiber& fiber);
  void meet_warp(Fiber& fiber);
  Orders& order() { return order_; }
  Orders& order_of_warp(const Fiber& fiber) { return warps_[fiber.thread.rank / warp_threads].order; }
  std::byte* shared_part(const void* name, std::size_t offset, std::size_t bytes);

 private:
  struct Warp {
    unsigned alive = 0;  // lanes
    unsigned waits = 0;  // lanes, whose fibers are these:
    Fiber* waiting[warp_threads] = {};
    Orders order{};
  };
  struct Part {
    const void* name;
    std::size_t offset;
    std::size_t bytes;
    std::unique_ptr<std::byte, void (*)(std::byte*)> memory;
  };

  unsigned threads() const { return dim_.x * dim_.y * dim_.z; }
  Fiber* drawn();
  void begin_thread(Fiber& fiber);
  bool end_thread(Fiber& fiber);  // whether the fiber goes on with another one
  void release_block();
  void release_warp(Warp& warp, unsigned mask);
  void check_gaps() const;
  [[noreturn]] void deadlock() const;

  Grid& grid_;
  const dim3 dim_;
  const uint3 block_;
  std::minstd_rand& random_;
  // Whether a warp runs on to the block's next barrier before others move, or all threads take turns.
  const bool warps_run_ahead_;
  std::vector<unsigned> unbegun_;  // ranks of threads, the next one last
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<Fiber*> ready_;
  std::vector<Fiber*> waiting_;  // for the block
  unsigned alive_;
  std::vector<Warp> warps_;
  Orders order_{};
  std::vector<Part> parts_;
};

thread_local Fiber* running = nullptr;

// The fiber before ended amid its frames, and left AddressSanitizer's notes of them.
Stack without_notes(const Stack& stack) {
#if TESSERA_ADDRESS_SANITIZER
  __asan_unpoison_memory_region(stack.memory, stack_bytes);
#endif
  return stack;
}

Fiber::Fiber(Block& block)
    : block_(block), stack_(without_notes(stacks.take())), context_(stack_.memory, stack_bytes, &Fiber::enter) {}

Fiber::~Fiber() { stacks.give_back(stack_); }

void Fiber::enter() {
  Fiber& self = *running;
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
  tsan_scheduler_ = running_fiber();
  switch_to(stack_.tsan);
#if TESSERA_ADDRESS_SANITIZER
  __sanitizer_start_switch_fiber(&asan_scheduler_, stack_.memory, stack_bytes);
#endif
  scheduler_.leave_for(context_);
#if TESSERA_ADDRESS_SANITIZER
  __sanitizer_finish_switch_fiber(asan_scheduler_, nullptr, nullptr);
#endif
  running = before;
}

void Fiber::yield() {
  switch_to(tsan_scheduler_);
#if TESSERA_ADDRESS_SANITIZER
  __sanitizer_start_switch_fiber(&asan_, scheduler_stack_, scheduler_stack_bytes_);
#endif
  context_.leave_for(scheduler_);
#if TESSERA_ADDRESS_SANITIZER
  __sanitizer_finish_switch_fiber(asan_, &scheduler_stack_, &scheduler_stack_bytes_);
#endif
}

void Fiber::finish() {
  switch_to(tsan_scheduler_);
#if TESSERA_ADDRESS_SANITIZER
  __sanitizer_start_switch_fiber(nullptr, scheduler_stack_, scheduler_stack_bytes_);
#endif
  context_.leave_for(scheduler_);
}

Block::Block(Grid& grid, uint3 block, std::minstd_rand& random)
    : grid_(grid),
      dim_(grid.configuration.blockDim),
      block_(block),
      random_(random),
      warps_run_ahead_(random() % 2 == 0),
      alive_(threads()),
      warps_((threads() + warp_threads - 1) / warp_threads) {
  const Drawn warps(warps_.size(), random_);
  for (std::size_t w = 0; w < warps_.size(); ++w) {
    const Drawn lanes(warp_threads, random_);
    for (unsigned i = 0; i < warp_threads; ++i) {
      const auto rank = static_cast<unsigned>(warps[w] * warp_threads + lanes[i]);
      if (rank >= threads()) continue;
      unbegun_.push_back(rank);
      warps_[rank / warp_threads].alive |= 1u << rank % warp_threads;
    }
  }
}

void Block::run() {
  while (Fiber* const next = drawn()) next->resume();
  if (alive_ > 0) deadlock();
  check_gaps();
}

// One that may go on, or a new one. Those that may go on last are the warp's that has just met.
Fiber* Block::drawn() {
  const std::size_t choices = ready_.size() + (unbegun_.empty() ? 0 : 1);
  if (choices == 0) return nullptr;
  const bool last = warps_run_ahead_ && !ready_.empty();
  const std::size_t choice = last ? ready_.size() - 1 : random_() % choices;
  if (choice == ready_.size()) return fibers_.emplace_back(std::make_unique<Fiber>(*this)).get();
  std::swap(ready_[choice], ready_.back());
  Fiber* const next = ready_.back();
  ready_.pop_back();
  return next;
}

void Block::run_threads(Fiber& fiber) {
  acquire(grid_.begun);
  do {
    begin_thread(fiber);
    grid_.thread();
  } while (end_thread(fiber));
  release(grid_.ended);
}

void Block::begin_thread(Fiber& fiber) {
  const Unwatched internals;
  const unsigned rank = unbegun_.back();
  unbegun_.pop_back();
  fiber.thread = {.thread = {rank % dim_.x, rank / dim_.x % dim_.y, rank / (dim_.x * dim_.y)},
                  .block = block_,
                  .block_dim = dim_,
                  .grid_dim = grid_.configuration.gridDim,
                  .rank = rank};
  fiber.of_block = fiber.of_warp = 0;
  show(fiber.thread);
}

bool Block::end_thread(Fiber& fiber) {
  const Unwatched internals;
  if (!fiber.thread.copies.empty()) fail("a thread ends before its copies into shared memory were waited for");
  --alive_;
  release_block();
  Warp& warp = warps_[fiber.thread.rank / warp_threads];
  warp.alive &= ~(1u << fiber.thread.lane());
  for (unsigned lane = 0; lane < warp_threads && warp.waits != 0; ++lane) {
    if ((warp.waits >> lane & 1) != 0) release_warp(warp, warp.waiting[lane]->mask);
  }
  return !finds_races() && !unbegun_.empty();
}

// Lets all go on when the last one that is alive has come.
void Block::release_block() {
  if (waiting_.size() < alive_) return;
  ready_.insert(ready_.end(), waiting_.begin(), waiting_.end());
  waiting_.clear();
}

void Block::meet_block(Fiber& fiber) {
  waiting_.push_back(&fiber);
  release_block();
  fiber.yield();
}

void Block::meet_warp(Fiber& fiber) {
  const unsigned lane = fiber.thread.lane();
  if ((fiber.mask >> lane & 1) == 0) fail("a lane meets others by a mask that does not name it");
  Warp& warp = warps_[fiber.thread.rank / warp_threads];
  warp.waiting[lane] = &fiber;
  warp.waits |= 1u << lane;
  release_warp(warp, fiber.mask);
  fiber.yield();
}

// Lets the lanes of a mask go on when all of them that are alive have come.
void Block::release_warp(Warp& warp, unsigned mask) {
  const unsigned wanted = mask & warp.alive;
  if ((wanted & ~warp.waits) != 0) return;
  void* shown[warp_threads] = {};
  void (*work)(Shown) = nullptr;
  for (unsigned lane = 0; lane < warp_threads; ++lane) {
    if ((wanted >> lane & 1) == 0) continue;
    if (warp.waiting[lane]->mask != mask) return;
    shown[lane] = warp.waiting[lane]->shown;
    work = warp.waiting[lane]->work;
  }
  if (work != nullptr) work(shown);
  warp.waits &= ~wanted;
  for (unsigned lane = 0; lane < warp_threads; ++lane) {
    if ((wanted >> lane & 1) != 0) ready_.push_back(warp.waiting[lane]);
  }
}

// Parts that lie apart in memory, so that nothing of one is reached from another.
std::byte* Block::shared_part(const void* name, std::size_t offset, std::size_t bytes) {
  for (const Part& part : parts_) {
    if (part.name == name && part.offset == offset && part.bytes == bytes) return part.memory.get();
    const bool apart = offset >= part.offset + part.bytes || part.offset >= offset + bytes;
    if (part.name == name && !apart) fail("two parts of dynamic shared memory overlap");
  }
  if (name == nullptr && offset + bytes > grid_.configuration.dynamicSmemBytes) {
    fail("a part of dynamic shared memory ends behind what the launch gave");
  }
  constexpr std::align_val_t alignment{128};
  auto* const memory = static_cast<std::byte*>(::operator new(bytes + gap_bytes, alignment));
  std::memset(memory, 0xff, bytes + gap_bytes);
  parts_.push_back({name, offset, bytes, {memory, [](std::byte* of) { ::operator delete(of, alignment); }}});
  return memory;
}

void Block::check_gaps() const {
  for (const Part& part : parts_) {
    const std::byte* const gap = part.memory.get() + part.bytes;
    if (std::all_of(gap, gap + gap_bytes, [](std::byte each) { return each == std::byte{0xff}; })) continue;
    std::fprintf(stderr, "emulated kernel: a part of shared memory of %zu bytes was written beyond its end\n",
                 part.bytes);
    std::abort();
  }
}

void Block::deadlock() const {
  std::fprintf(stderr,
               "emulated kernel: %zu threads of a block wait at __syncthreads, %zu at a warp's barrier: a hang\n",
               waiting_.size(), alive_ - waiting_.size());
  for (std::size_t w = 0; w < warps_.size(); ++w) {
    for (unsigned lane = 0; lane < warp_threads; ++lane) {
      if ((warps_[w].waits >> lane & 1) == 0) continue;
      std::fprintf(stderr, "  warp %zu, lane %u waits for the lanes of mask %08x\n", w, lane,
                   warps_[w].waiting[lane]->mask);
    }
  }
  std::abort();
}

}  // namespace

#if TESSERA_THREAD_SANITIZER
// The annotations of a condition variable are the ones that keep no stack for each call: 30 % of a kernel's time.
Unwatched::Unwatched() { __tsan_mutex_pre_signal(this, 0); }
Unwatched::~Unwatched() { __tsan_mutex_post_signal(this, 0); }
#endif

Thread& self() { return running->thread; }

void fail(const char* text) {
  const Thread& me = self();
  std::fprintf(stderr, "emulated kernel: %s (block %u, %u, %u, thread %u)\n", text, me.block.x, me.block.y, me.block.z,
               me.rank);
  std::abort();
}

namespace {
std::uint64_t& next_order_of_block() {
  const Unwatched internals;
  return running->block().order()[running->of_block++ % 2];
}
std::uint64_t& next_order_of_warp() {
  const Unwatched internals;
  return running->block().order_of_warp(*running)[running->of_warp++ % 2];
}

void run_blocks(Grid& grid) {
  static thread_local unsigned grids = 0;
  const Unwatched internals;
  const char* const seed = given_seed();
  // Kernels take turns, so numbers that follow each other must not begin alike.
  std::seed_seq drawn{seed == nullptr ? 0ul : std::strtoul(seed, nullptr, 10), static_cast<unsigned long>(++grids)};
  std::minstd_rand random(drawn);
  const dim3 extent = grid.configuration.gridDim;
  const std::uint64_t blocks = std::uint64_t{extent.x} * extent.y * extent.z;
  const Drawn order(blocks, random);
  for (std::uint64_t i = 0; i < blocks; ++i) {
    const std::uint64_t b = order[i];
    const std::uint64_t row = b / extent.x;
    const uint3 at{static_cast<unsigned>(b % extent.x), static_cast<unsigned>(row % extent.y),
                   static_cast<unsigned>(row / extent.y)};
    std::make_unique<Block>(grid, at, random)->run();  // on the heap: ThreadSanitizer forgets its orders with it
  }
  stacks.end_grid();
}

}  // namespace

void meet_warp(unsigned mask, void* shown, void (*work)(Shown)) {
  const Unwatched internals;
  running->mask = mask;
  running->shown = shown;
  running->work = work;
  running->block().meet_warp(*running);
}

void block_barrier() {
  std::uint64_t& order = next_order_of_block();
  release(order);
  {
    const Unwatched internals;
    running->block().meet_block(*running);
  }
  acquire(order);
}

void warp_barrier(unsigned mask) {
  std::uint64_t& order = next_order_of_warp();
  release(order);
  meet_warp(mask, nullptr, nullptr);
  acquire(order);
}

std::byte* shared_part(const void* name, std::size_t offset, std::size_t bytes) {
  const Unwatched internals;
  return running->block().shared_part(name, offset, bytes);
}

void run_grid(const cudaLaunchConfig_t& configuration, const std::function<void()>& thread) {
  Grid grid{configuration, thread};
  release(grid.begun);
  run_blocks(grid);
  acquire(grid.ended);
}

}  // namespace emulated
