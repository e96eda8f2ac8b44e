// The probe itself: it sees every way to memory once, no memory that it did not see taken, and nobody's counters but
// its own.
#include <doctest/doctest.h>
#include <malloc.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "memory/require_probe.hpp"
#include "probe/memory_probe.hpp"
#include "tessera/base/error.hpp"
#include "tessera/device/stream.hpp"

namespace {

using namespace tessera;

const std::size_t page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));

std::span<std::byte> map_pages(std::size_t pages) {
  void* mapped = ::mmap(nullptr, pages * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(mapped != MAP_FAILED);
  ::madvise(mapped, pages * page, MADV_NOHUGEPAGE);
  return {static_cast<std::byte*>(mapped), pages * page};
}

void touch(std::span<std::byte> memory, std::size_t pages) {
  for (std::size_t i = 0; i < pages; ++i) static_cast<volatile std::byte*>(memory.data())[i * page] = std::byte{1};
}

void unmap(std::span<std::byte> memory) { REQUIRE(::munmap(memory.data(), memory.size()) == 0); }

struct alignas(256) Aligned {
  char bytes[256];
};

struct Way {
  const char* name;
  std::size_t bytes;
  std::function<void*()> take;
  std::function<void(void*)> give;
};

std::vector<Way> ways_to_the_heap() {
  const auto give = [](void* block) { std::free(block); };
  return {
      {"malloc", 1001, [] { return std::malloc(1001); }, give},
      {"calloc", 7 * 143, [] { return std::calloc(7, 143); }, give},
      {"realloc", 1001, [] { return std::realloc(nullptr, 1001); }, give},
      {"aligned_alloc", 1024, [] { return std::aligned_alloc(64, 1024); }, give},
      {"memalign", 1001, [] { return ::memalign(64, 1001); }, give},
      {"posix_memalign", 1001,
       [] {
         void* block = nullptr;
         return ::posix_memalign(&block, 64, 1001) == 0 ? block : nullptr;
       },
       give},
      {"valloc", 1001, [] { return ::valloc(1001); }, give},
      {"pvalloc", 1001, [] { return ::pvalloc(1001); }, give},
      {"a block that malloc maps", 1 << 20, [] { return std::malloc(1 << 20); }, give},
      {"operator new", 1001, [] { return ::operator new(1001); }, [](void* block) { ::operator delete(block); }},
      {"operator new[]", 1001, [] { return ::operator new[](1001); }, [](void* block) { ::operator delete[](block); }},
      {"aligned new", sizeof(Aligned), [] { return static_cast<void*>(new Aligned); },
       [](void* block) { delete static_cast<Aligned*>(block); }},
  };
}

TEST_CASE("every_way_to_the_heap_counts_once_and_is_given_back_whole") {
  REQUIRE_PROBE();
  for (const Way& way : ways_to_the_heap()) {
    CAPTURE(way.name);
    const probe::Heap before = probe::heap_of_this_thread();
    void* block = way.take();
    const probe::Heap held = probe::heap_of_this_thread();
    way.give(block);
    const probe::Heap after = probe::heap_of_this_thread();
    REQUIRE(block != nullptr);
    CHECK(held.allocations - before.allocations == 1);
    CHECK(held.live_bytes - before.live_bytes >= std::int64_t(way.bytes));
    CHECK(held.live_bytes - before.live_bytes < std::int64_t(way.bytes + 2 * page));
    CHECK(held.live_blocks - before.live_blocks == 1);
    CHECK(after.live_bytes == before.live_bytes);
    CHECK(after.live_blocks == before.live_blocks);
    CHECK(after.allocations == held.allocations);
  }
}

TEST_CASE("a_block_that_changes_its_size_is_held_once") {
  REQUIRE_PROBE();
  const std::int64_t before = probe::heap_of_this_thread().live_bytes;
  void* block = std::malloc(100);
  block = std::realloc(block, 5000);
  const std::int64_t held = probe::heap_of_this_thread().live_bytes - before;
  CHECK(held >= 5000);
  CHECK(held < 5100);
  std::free(block);
  CHECK(probe::heap_of_this_thread().live_bytes == before);
}

TEST_CASE("heap_growth_is_of_the_own_thread") {
  REQUIRE_PROBE();
  const probe::HeapGrowth growth;
  std::unique_ptr<char[]> theirs;
  std::thread other([&] { theirs = std::make_unique<char[]>(100'000); });
  other.join();
  CHECK(growth.bytes() < Bytes(10'000));
  const auto mine = std::make_unique<char[]>(100'000);
  CHECK(growth.bytes() >= Bytes(100'000));
}

TEST_CASE("only_touched_pages_are_measured") {
  REQUIRE_PROBE();
  const auto memory = map_pages(3001);  // more than one question to the kernel
  CHECK(probe::measured(memory) == Bytes(0));
  touch(memory, 2003);
  CHECK(probe::measured(memory) == Bytes(2003 * page));
  CHECK(probe::measured(memory.first(page + 1)) == Bytes(page + 1));
  CHECK(probe::measured(memory.subspan(page / 2, page)) == Bytes(page));
  CHECK(probe::measured(memory.subspan(2002 * page)) == Bytes(page));
  CHECK(probe::measured(memory.first(0)) == Bytes(0));
  unmap(memory);
  CHECK(probe::measured(memory) == Bytes(0));
}

TEST_CASE("memory_that_nobody_was_seen_to_take_is_not_measured") {
  REQUIRE_PROBE();
  void* unseen = reinterpret_cast<void*>(
      ::syscall(SYS_mmap, nullptr, 4 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  REQUIRE(unseen != MAP_FAILED);
  const std::span<std::byte> memory(static_cast<std::byte*>(unseen), 4 * page);
  touch(memory, 4);
  CHECK(probe::measured(memory) == Bytes(0));
  CHECK(probe::mapping_of(unseen) == Bytes(0));
  const auto beside = std::make_unique<std::byte[]>(100);
  CHECK(probe::measured({beside.get(), 100}) == Bytes(0));
  ::syscall(SYS_munmap, unseen, 4 * page);
}

// A category that the plan counts and nobody allocates, or allocates too small, would look like this.
TEST_CASE("a_range_beyond_its_mapping_measures_short") {
  REQUIRE_PROBE();
  const auto memory = map_pages(3);
  touch(memory, 3);
  const std::span<const std::byte> planned(memory.data() - page, 5 * page);
  CHECK(probe::measured(planned) == Bytes(3 * page));
  unmap(memory);
}

TEST_CASE("mappings_are_followed_when_they_are_cut_moved_and_replaced") {
  REQUIRE_PROBE();
  const probe::Mappings before = probe::mappings();
  auto memory = map_pages(7);
  CHECK(probe::mapping_of(&memory[3 * page + 1]) == Bytes(7 * page));
  CHECK(probe::mapping_of(memory.data() + 7 * page) == Bytes(0));
  unmap(memory.subspan(2 * page, page));
  CHECK(probe::mapping_of(memory.data()) == Bytes(2 * page));
  CHECK(probe::mapping_of(memory.data() + 2 * page) == Bytes(0));
  CHECK(probe::mapping_of(memory.data() + 3 * page) == Bytes(4 * page));
  CHECK(probe::mappings().size - before.size == Bytes(6 * page));

  void* grown = ::mremap(memory.data(), 2 * page, 11 * page, MREMAP_MAYMOVE);
  REQUIRE(grown != MAP_FAILED);
  CHECK(probe::mapping_of(grown) == Bytes(11 * page));
  void* replaced = ::mmap(grown, page, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
  CHECK(probe::mapping_of(replaced) == Bytes(page));
  CHECK(probe::mappings().size - before.size == Bytes(15 * page));

  unmap({static_cast<std::byte*>(grown), 11 * page});
  unmap(memory.subspan(3 * page));
  CHECK(probe::mappings().count == before.count);
  CHECK(probe::mappings().size == before.size);
  CHECK(probe::mappings().unseen == 0);
}

TEST_CASE("a_watch_counts_allocations_of_any_thread_and_names_their_call_sites") {
  REQUIRE_PROBE();
  Stream stream(Device::cpu(), {.name = "worker"});
  stream.synchronize();
  probe::AllocationWatch watch;
  CHECK(watch.count() == 0);
  stream.submit([] { delete new std::string(100, 'x'); });
  stream.synchronize();
  CHECK(watch.count() == 2);
  unmap(map_pages(1));
  CHECK(watch.count() == 3);
  const std::string text = watch.describe();
  CAPTURE(text);
  CHECK(text.find("3 allocations") == 0);
  CHECK(text.find("test_memory") != std::string::npos);
  const auto later = std::make_unique<int>(1);
  CHECK(watch.count() == 3);
}

TEST_CASE("one_watch_at_a_time") {
  REQUIRE_PROBE();
  {
    const probe::AllocationWatch first;
    CHECK_THROWS_AS(probe::AllocationWatch(), UsageError);
  }
  const probe::AllocationWatch second;
  CHECK(second.count() == 0);
}

}  // namespace
