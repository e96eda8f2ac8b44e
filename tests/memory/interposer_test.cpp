// The probe itself: it sees what is mapped and touched, and no memory that it did not see taken.
#include <doctest/doctest.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <memory>

#include "memory/require_probe.hpp"
#include "probe/memory_probe.hpp"

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

TEST_CASE("mappings_are_followed_when_they_are_cut_and_replaced") {
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

  void* replaced = ::mmap(memory.data(), page, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
  CHECK(probe::mapping_of(replaced) == Bytes(page));
  CHECK(probe::mappings().size - before.size == Bytes(6 * page));
  CHECK(probe::mappings().taken - before.taken == 2);

  unmap(memory.first(2 * page));
  unmap(memory.subspan(3 * page));
  CHECK(probe::mappings().count == before.count);
  CHECK(probe::mappings().size == before.size);
}

}  // namespace
