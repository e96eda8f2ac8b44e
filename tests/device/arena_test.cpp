// Arenas: exactly the size that was asked for, resident from the beginning.
#include "tessera/device/arena.hpp"

#include <doctest/doctest.h>
#include <sys/mman.h>

#include <algorithm>
#include <vector>

#include "tessera/base/error.hpp"

using namespace tessera;

namespace {

std::size_t resident_pages(Arena& arena) {
  std::vector<unsigned char> pages(arena.size().count() / Arena::page.count());
  REQUIRE(::mincore(arena.data(), arena.size().count(), pages.data()) == 0);
  return static_cast<std::size_t>(std::count_if(pages.begin(), pages.end(), [](unsigned char p) { return p & 1; }));
}

}  // namespace

TEST_CASE("an arena has whole pages, zero-filled, aligned and resident") {
  for (std::uint64_t size : {1u, 4095u, 4096u, 4097u, 5'000'011u}) {
    CAPTURE(size);
    Arena arena(Device::cpu(), Bytes(size));
    CHECK(arena.size() == round_up(Bytes(size), Arena::page));
    CHECK(reinterpret_cast<std::uintptr_t>(arena.data()) % Arena::page.count() == 0);
    CHECK(resident_pages(arena) == arena.size().count() / Arena::page.count());
    const auto all = arena.range(Bytes(0), arena.size());
    CHECK(std::all_of(all.begin(), all.end(), [](std::byte b) { return b == std::byte{0}; }));
    all.front() = all.back() = std::byte{7};
  }
}

TEST_CASE("an arena of size 0 has no memory and one empty range") {
  Arena arena(Device::cpu(), Bytes(0));
  CHECK(arena.size() == Bytes(0));
  CHECK(arena.data() == nullptr);
  CHECK(arena.range(Bytes(0), Bytes(0)).empty());
  CHECK_THROWS_AS(arena.range(Bytes(0), Bytes(1)), InternalError);
}

TEST_CASE("a range outside the arena is an error, also where offset plus size overflows") {
  Arena arena(Device::cpu(), Bytes(8192));
  CHECK(arena.range(Bytes(4096), Bytes(4096)).data() == arena.data() + 4096);
  CHECK(arena.range(Bytes(8192), Bytes(0)).empty());
  CHECK_THROWS_AS(arena.range(Bytes(4096), Bytes(4097)), InternalError);
  CHECK_THROWS_AS(arena.range(Bytes(8193), Bytes(0)), InternalError);
  CHECK_THROWS_AS(arena.range(Bytes(4096), Bytes(~0ull)), InternalError);
}

TEST_CASE("a moved arena keeps its address") {
  Arena first(Device::cpu(), Bytes(4096));
  std::byte* data = first.data();
  Arena second = std::move(first);
  CHECK(second.data() == data);
}

TEST_CASE("an arena that cannot be had is an error naming size and device") {
  const Bytes impossible(1ull << 60);
  CHECK_THROWS_WITH_AS(Arena(Device::cpu(), impossible), doctest::Contains("1.00 EiB"), MemoryError);
  CHECK_THROWS_WITH_AS(Arena(Device::cpu(), impossible), doctest::Contains("on cpu"), MemoryError);
  CHECK_THROWS_AS(Arena(Device::cpu(), Bytes(~0ull)), MemoryError);
}
