// The entry that libFuzzer calls, and the counting of memory: all of C++'s passes through operator new.
#include "fuzz.hpp"

#include <malloc.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <new>

#include "tessera/base/error.hpp"

namespace {

std::atomic<std::size_t> held = 0;  // libFuzzer has threads of its own
std::size_t limit = SIZE_MAX;

void* allocate(std::size_t size) {
  void* const memory = std::malloc(size);
  if (memory == nullptr) throw std::bad_alloc();
  held += ::malloc_usable_size(memory);
  fuzz::require(held <= limit, "more memory than the size of the input explains");
  return memory;
}

void release(void* memory) noexcept {
  if (memory == nullptr) return;
  held -= ::malloc_usable_size(memory);
  std::free(memory);
}

}  // namespace

void* operator new(std::size_t size) { return allocate(size); }
void* operator new[](std::size_t size) { return allocate(size); }
// Without these, memory of the one kind would be released by the other.
void* operator new(std::size_t size, const std::nothrow_t&) noexcept { return allocate(size); }
void* operator new[](std::size_t size, const std::nothrow_t&) noexcept { return allocate(size); }
void operator delete(void* memory) noexcept { release(memory); }
void operator delete[](void* memory) noexcept { release(memory); }
void operator delete(void* memory, std::size_t) noexcept { release(memory); }
void operator delete[](void* memory, std::size_t) noexcept { release(memory); }

void fuzz::require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "fuzz: %s\n", what);
  std::abort();
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  limit = held + fuzz::memory_limit(size);
  try {
    fuzz::read_input({reinterpret_cast<const char*>(data), size});
  } catch (const tessera::DataError&) {
    // The input is not such a file, and that was said.
  }
  limit = SIZE_MAX;
  return 0;
}
