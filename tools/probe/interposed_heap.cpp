// malloc and its family, as the executable and all its libraries see them: glibc's own, and a note of each block.
// operator new calls these, so every allocation is counted once. glibc's internal mmap for large blocks is not seen as
// a mapping.
#include <errno.h>  // NOLINT(modernize-deprecated-headers): the definitions below are C's
#include <malloc.h>
#include <stdlib.h>  // NOLINT(modernize-deprecated-headers)

#include <bit>

#include "probe/allocation_log.hpp"

extern "C" {

void* __libc_malloc(size_t size);
void* __libc_calloc(size_t count, size_t size);
void* __libc_realloc(void* block, size_t size);
void* __libc_memalign(size_t alignment, size_t size);
void* __libc_valloc(size_t size);
void* __libc_pvalloc(size_t size);
void __libc_free(void* block);

}  // extern "C"

namespace {

void* noted(void* block) noexcept {
  if (block != nullptr) tessera::probe::note_block(::malloc_usable_size(block));
  return block;
}

}  // namespace

extern "C" {

void* malloc(size_t size) noexcept { return noted(__libc_malloc(size)); }
void* calloc(size_t count, size_t size) noexcept { return noted(__libc_calloc(count, size)); }
void* memalign(size_t alignment, size_t size) noexcept { return noted(__libc_memalign(alignment, size)); }
void* aligned_alloc(size_t alignment, size_t size) noexcept { return noted(__libc_memalign(alignment, size)); }
void* valloc(size_t size) noexcept { return noted(__libc_valloc(size)); }
void* pvalloc(size_t size) noexcept { return noted(__libc_pvalloc(size)); }

int posix_memalign(void** result, size_t alignment, size_t size) noexcept {
  if (alignment % sizeof(void*) != 0 || !std::has_single_bit(alignment)) return EINVAL;
  void* block = noted(__libc_memalign(alignment, size));
  if (block == nullptr) return ENOMEM;
  *result = block;
  return 0;
}

void free(void* block) noexcept {
  if (block == nullptr) return;
  tessera::probe::note_free(::malloc_usable_size(block));
  __libc_free(block);
}

void* realloc(void* block, size_t size) noexcept {
  const size_t before = block == nullptr ? 0 : ::malloc_usable_size(block);
  void* const moved = __libc_realloc(block, size);
  const bool freed = moved == nullptr && block != nullptr && size == 0;
  if (block != nullptr && (moved != nullptr || freed)) tessera::probe::note_free(before);
  return noted(moved);
}

}  // extern "C"
