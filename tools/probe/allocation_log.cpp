// Counters of the heap, and the call sites that a watch collects.
#include "probe/allocation_log.hpp"

#include <execinfo.h>

#include <algorithm>
#include <atomic>
#include <thread>

namespace tessera::probe {
namespace {

constinit std::atomic<std::int64_t> live_bytes = 0;
constinit std::atomic<std::uint64_t> allocations = 0;
constinit std::atomic<std::uint64_t> frees = 0;
// initial-exec: reaching these must not itself allocate, as a dynamic thread-local may.
[[gnu::tls_model("initial-exec")]] constinit thread_local Heap of_this_thread = {};
[[gnu::tls_model("initial-exec")]] constinit thread_local bool collecting = false;

constinit std::atomic<bool> taken = false;     // there is a watch
constinit std::atomic<bool> watching = false;  // and it counts
constinit std::atomic<std::uint64_t> watched = 0;
constinit std::atomic<int> writers = 0;  // threads between the look at `watching` and the end of their note
constinit std::array<Site, most_sites> sites = {};

void collect(Site& site) noexcept {
  collecting = true;  // what the unwinder allocates is not the program's
  site.depth = ::backtrace(site.frames.data(), static_cast<int>(site.frames.size()));
  collecting = false;
}

}  // namespace

void note_allocation() noexcept {
  if (collecting || !watching.load()) return;
  ++writers;
  if (watching.load()) {
    const std::uint64_t index = watched.fetch_add(1);
    if (index < sites.size()) collect(sites[index]);
  }
  --writers;
}

void note_block(std::size_t bytes) noexcept {
  const auto size = static_cast<std::int64_t>(bytes);
  live_bytes.fetch_add(size, std::memory_order_relaxed);
  allocations.fetch_add(1, std::memory_order_relaxed);
  of_this_thread.live_bytes += size;
  ++of_this_thread.live_blocks;
  ++of_this_thread.allocations;
  note_allocation();
}

void note_free(std::size_t bytes) noexcept {
  const auto size = static_cast<std::int64_t>(bytes);
  live_bytes.fetch_sub(size, std::memory_order_relaxed);
  frees.fetch_add(1, std::memory_order_relaxed);
  of_this_thread.live_bytes -= size;
  --of_this_thread.live_blocks;
}

Heap heap() {
  const std::uint64_t freed = frees.load();
  const std::uint64_t allocated = allocations.load();
  return {live_bytes.load(), static_cast<std::int64_t>(allocated - freed), allocated};
}

Heap heap_of_this_thread() { return of_this_thread; }

bool start_watching() {
  if (taken.exchange(true)) return false;
  Site first = {};
  collect(first);  // the unwinder loads its library on first use
  watched = 0;
  sites = {};
  watching = true;
  return true;
}

void stop_watching() {
  watching = false;
  while (writers.load() > 0) std::this_thread::yield();
  taken = false;
}

std::uint64_t watched_allocations() { return watched.load(); }

std::span<const Site> watched_sites() {
  return std::span(sites).first(std::min<std::size_t>(watched_allocations(), sites.size()));
}

}  // namespace tessera::probe
