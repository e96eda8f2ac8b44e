// Streams: order, capacity, synchronisation, modes.
#include "tessera/device/stream.hpp"

#include <doctest/doctest.h>
#include <pthread.h>

#include <atomic>
#include <thread>
#include <vector>

#include "gate.hpp"
#include "tessera/base/error.hpp"

using namespace tessera;
using namespace std::chrono_literals;

TEST_CASE("tasks run in the order of submission, one at a time, through a ring of any capacity") {
  for (std::size_t capacity : {1u, 2u, 3u, 7u, 256u}) {
    for (StreamMode mode : {StreamMode::queued, StreamMode::immediate}) {
      CAPTURE(capacity);
      std::vector<int> order;  // not atomic: ThreadSanitizer sees whether tasks and host are ordered
      Stream stream(Device::cpu(), {.mode = mode, .queue_capacity = capacity});
      for (int k = 0; k < 1009; ++k) stream.submit([&order, k] { order.push_back(k); });
      stream.synchronize();
      REQUIRE(order.size() == 1009);
      for (int k = 0; k < 1009; ++k) REQUIRE(order[static_cast<std::size_t>(k)] == k);
    }
  }
}

TEST_CASE("submit blocks while the ring is full, and only then") {
  Gate gate;
  std::atomic<int> submitted = 0;
  Stream stream(Device::cpu(), {.queue_capacity = 3});
  std::thread host([&] {
    for (int k = 0; k < 4; ++k) {
      stream.submit([&] { gate.pass(); });
      ++submitted;
    }
  });
  while (submitted < 3) std::this_thread::yield();
  std::this_thread::sleep_for(30ms);
  CHECK(submitted == 3);
  gate.open();
  host.join();
  stream.synchronize();
  CHECK(submitted == 4);
}

TEST_CASE("random delays keep the order") {
  std::vector<int> order;
  Stream stream(Device::cpu(), {.delay_seed = 5});
  for (int k = 0; k < 101; ++k) stream.submit([&order, k] { order.push_back(k); });
  stream.synchronize();
  REQUIRE(order.size() == 101);
  for (int k = 0; k < 101; ++k) CHECK(order[static_cast<std::size_t>(k)] == k);
}

TEST_CASE("an immediate stream runs each task on the calling thread before submit returns") {
  Stream stream(Device::cpu(), {.mode = StreamMode::immediate});
  std::thread::id ran_on;
  stream.submit([&] { ran_on = std::this_thread::get_id(); });
  CHECK(ran_on == std::this_thread::get_id());
  CHECK(stream.mode() == StreamMode::immediate);
}

TEST_CASE("a queued stream runs on a thread of its own, which bears its name") {
  Stream stream(Device::cpu(), {.name = "rank 3 gather, quite long"});
  std::thread::id ran_on;
  char name[32] = {};
  stream.submit([&] {
    ran_on = std::this_thread::get_id();
    ::pthread_getname_np(::pthread_self(), name, sizeof name);
  });
  stream.synchronize();
  CHECK(ran_on != std::this_thread::get_id());
  CHECK(std::string(name) == "rank 3 gather, ");
  CHECK(stream.name() == "rank 3 gather, quite long");
  CHECK(stream.device() == Device::cpu());
}

TEST_CASE("destruction drains the queue") {
  int runs = 0;
  {
    Stream stream(Device::cpu(), {});
    for (int k = 0; k < 100; ++k) stream.submit([&runs] { ++runs; });
  }
  CHECK(runs == 100);
}

TEST_CASE("a moved stream goes on") {
  int runs = 0;
  Stream first(Device::cpu(), {});
  first.submit([&runs] { ++runs; });
  Stream second = std::move(first);
  second.submit([&runs] { ++runs; });
  second.synchronize();
  CHECK(runs == 2);
}

TEST_CASE("synchronize on an idle stream returns, and a task's captures are gone after it") {
  Stream stream(Device::cpu(), {});
  stream.synchronize();
  auto owned = std::make_shared<int>(0);
  const std::weak_ptr<int> watched = owned;
  stream.submit([owned = std::move(owned)] {});
  stream.synchronize();
  CHECK(watched.expired());
}

TEST_CASE("a ring without room and a task without content are errors") {
  CHECK_THROWS_WITH_AS(Stream(Device::cpu(), {.name = "narrow", .queue_capacity = 0}), doctest::Contains("\"narrow\""),
                       UsageError);
  Stream stream(Device::cpu(), {});
  CHECK_THROWS_AS(stream.submit(Task()), UsageError);
}
