// Streams and events allocate on construction only.
#include <doctest/doctest.h>

#include <cstdint>
#include <new>
#include <optional>

#include "allocation_counter.hpp"
#include "tessera/device/event.hpp"
#include "tessera/device/stream.hpp"

using namespace tessera;

namespace {

std::size_t allocations_of_use(StreamMode mode, std::optional<std::uint64_t> seed) {
  Stream first(Device::cpu(), {.name = "a name of some length", .mode = mode, .queue_capacity = 7, .delay_seed = seed});
  Stream second(Device::cpu(), {.name = "another name of some length", .queue_capacity = 7});
  Event there(Device::cpu(), "an event with a name of some length"), back(Device::cpu(), "another such event");
  int value = 0;
  const std::size_t before = allocations_so_far();
  for (int k = 0; k < 50; ++k) {
    first.submit([&value] { ++value; });
    first.record(there);
    second.wait(there);
    second.submit([&value] { ++value; });
    second.record(back);
    first.wait(back);
  }
  first.synchronize();
  second.synchronize();
  return allocations_so_far() - before;
}

}  // namespace

TEST_CASE("submitting, recording, waiting and synchronising allocate nothing") {
  CHECK(allocations_of_use(StreamMode::queued, std::nullopt) == 0);
  CHECK(allocations_of_use(StreamMode::queued, 3) == 0);
  CHECK(allocations_of_use(StreamMode::immediate, std::nullopt) == 0);
}

TEST_CASE("the counter counts") {
  const std::size_t before = allocations_so_far();
  ::operator delete(::operator new(1));  // called by name: a new expression might be optimised away
  CHECK(allocations_so_far() > before);
}
