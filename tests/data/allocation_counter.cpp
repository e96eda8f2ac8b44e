// Replaces operator new in the program that it is linked into. In a file of its own, so that no caller is compiled
// against half of the pair. Clang's ThreadSanitizer has an operator new that cannot be replaced, and says what it gives
// and takes back, malloc's blocks with it.
#include "allocation_counter.hpp"

#include <malloc.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "../sanitizers/sanitizers.hpp"

namespace {

std::atomic<std::size_t> count = 0;
std::atomic<std::int64_t> live = 0;
thread_local std::int64_t bytes_of_thread = 0;

void given(void* memory) noexcept {
  ++count;
  ++live;
  bytes_of_thread += static_cast<std::int64_t>(::malloc_usable_size(memory));
}

void taken_back(void* memory) noexcept {
  if (memory == nullptr) return;
  --live;
  bytes_of_thread -= static_cast<std::int64_t>(::malloc_usable_size(memory));
}

}  // namespace

std::size_t allocations_so_far() { return count; }
std::int64_t live_blocks() { return live; }
std::int64_t live_bytes_of_this_thread() { return bytes_of_thread; }

#if TESSERA_HAS_FEATURE(thread_sanitizer)
extern "C" {
void __sanitizer_malloc_hook(const volatile void* memory, std::size_t) { given(const_cast<void*>(memory)); }
void __sanitizer_free_hook(const volatile void* memory) { taken_back(const_cast<void*>(memory)); }
}
#else
namespace {

void* counted(void* memory) {
  if (memory == nullptr) throw std::bad_alloc();
  given(memory);
  return memory;
}

void release(void* memory) noexcept {
  taken_back(memory);
  std::free(memory);
}

}  // namespace

void* operator new(std::size_t size) { return counted(std::malloc(size > 0 ? size : 1)); }
// The standard library's algorithms ask for their buffers so, and give them back to the operator delete below.
void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  try {
    return ::operator new(size);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
void* operator new(std::size_t size, std::align_val_t alignment) {
  const std::size_t step = static_cast<std::size_t>(alignment);
  return counted(std::aligned_alloc(step, (size + step) / step * step));
}
void operator delete(void* memory) noexcept { release(memory); }
void operator delete(void* memory, std::size_t) noexcept { release(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { release(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { release(memory); }
#endif
