// Threads that compute move off each other's processors, and may use as many afterwards as before.
#include "device/own_processor.hpp"

#include <doctest/doctest.h>
#include <sched.h>

#include <optional>
#include <thread>
#include <vector>

namespace own_processor_test {

cpu_set_t allowed() {
  cpu_set_t set;
  REQUIRE(sched_getaffinity(0, sizeof set, &set) == 0);
  return set;
}

std::vector<int> processors_of(const cpu_set_t& set) {
  std::vector<int> result;
  for (int processor = 0; processor < CPU_SETSIZE; ++processor) {
    if (CPU_ISSET(processor, &set)) result.push_back(processor);
  }
  return result;
}

void allow_only(int processor) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(processor, &set);
  REQUIRE(sched_setaffinity(0, sizeof set, &set) == 0);
}

// Whether a new thread that is on `processor`, and may use `all`, stays there when it settles. Nothing when the kernel
// had moved it before.
std::optional<bool> stays(int processor, const cpu_set_t& all) {
  std::optional<bool> result;
  std::thread([&] {
    allow_only(processor);
    REQUIRE(sched_setaffinity(0, sizeof all, &all) == 0);
    if (sched_getcpu() != processor) return;
    tessera::device::settle_on_own_processor();
    result = sched_getcpu() == processor;
    const cpu_set_t after = allowed();
    CHECK(CPU_EQUAL(&after, &all));
  }).join();
  return result;
}

// Several attempts are made, because the kernel may move any thread at any moment, too.
bool once(bool expected, int processor, const cpu_set_t& all) {
  for (int attempt = 0; attempt < 100; ++attempt) {
    if (stays(processor, all) == expected) return true;
  }
  return false;
}

// The threads that wait are asleep, so that nothing but the note of their places makes another one move.
TEST_CASE("a_thread_leaves_the_processor_of_one_that_settled_before_and_may_use_all_of_them_still") {
  const cpu_set_t all = allowed();
  const std::vector<int> processors = processors_of(all);
  if (processors.size() < 2) {
    MESSAGE("skipped: one processor");
    return;
  }
  for (const int processor : {processors.front(), processors.back()}) {
    CHECK(once(true, processor, all));  // nobody else is there
    std::thread([&] {
      allow_only(processor);
      tessera::device::settle_on_own_processor();
      CHECK(once(false, processor, all));
    }).join();
    CHECK(once(true, processor, all));  // who has ended is nowhere
  }
}

TEST_CASE("a_thread_that_may_go_nowhere_stays") {
  const cpu_set_t all = allowed();
  const int processor = processors_of(all).front();
  std::thread([&] {
    allow_only(processor);
    tessera::device::settle_on_own_processor();
    std::thread([&] {
      const cpu_set_t before = allowed();
      tessera::device::settle_on_own_processor();
      const cpu_set_t after = allowed();
      CHECK(CPU_EQUAL(&after, &before));
      CHECK(sched_getcpu() == processor);
    }).join();
  }).join();
}

}  // namespace own_processor_test
