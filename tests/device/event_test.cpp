// Events: what waits for what, across streams.
#include "tessera/device/event.hpp"

#include <doctest/doctest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <optional>
#include <thread>
#include <vector>

#include "../sanitizers/sanitizers.hpp"
#include "gate.hpp"
#include "tessera/base/error.hpp"
#include "tessera/device/stream.hpp"

using namespace tessera;
using namespace std::chrono_literals;

constexpr bool forked_processes_may_thread = !TESSERA_THREAD_SANITIZER;

TEST_CASE("an event is complete once everything before its record has run") {
  Gate gate;
  Stream stream(Device::cpu(), {});
  Event event(Device::cpu(), "mark");
  CHECK(event.name() == "mark");
  CHECK_FALSE(event.recorded());
  CHECK_FALSE(event.complete());
  stream.submit([&] { gate.pass(); });
  stream.record(event);
  CHECK(event.recorded());
  CHECK_FALSE(event.complete());
  gate.open();
  stream.synchronize();
  CHECK(event.complete());
}

TEST_CASE("an event recorded on a stream without work is complete") {
  Stream stream(Device::cpu(), {});
  Event event(Device::cpu(), "mark");
  stream.record(event);
  CHECK(event.complete());
}

TEST_CASE("waiting for an event that was never recorded is an error naming stream and event") {
  for (StreamMode mode : {StreamMode::queued, StreamMode::immediate}) {
    Stream stream(Device::cpu(), {.name = "gather", .mode = mode});
    Event event(Device::cpu(), "slot 1 free");
    CHECK_THROWS_WITH_AS(stream.wait(event), doctest::Contains("\"gather\""), UsageError);
    CHECK_THROWS_WITH_AS(stream.wait(event), doctest::Contains("\"slot 1 free\""), UsageError);
    stream.synchronize();
  }
}

TEST_CASE("a value goes round a ring of streams in order, with and without delays") {
  for (bool delayed : {false, true}) {
    constexpr std::size_t streams = 3;
    const int rounds = delayed ? 40 : 700;
    std::vector<Stream> ring;
    std::vector<Event> passed;
    for (std::size_t s = 0; s < streams; ++s) {
      const auto seed = delayed ? std::optional<std::uint64_t>(s) : std::nullopt;
      ring.emplace_back(Device::cpu(), StreamOptions{.queue_capacity = 5, .delay_seed = seed});
      passed.emplace_back(Device::cpu(), "passed");
    }
    int value = 0;  // not atomic: the events alone order the tasks
    int wrong = 0;
    for (int k = 0; k < rounds; ++k) {
      const std::size_t here = static_cast<std::size_t>(k) % streams;
      const std::size_t before = (here + streams - 1) % streams;
      if (k > 0) ring[here].wait(passed[before]);
      ring[here].submit([&, k] {
        wrong += value != k;
        ++value;
      });
      ring[here].record(passed[here]);
    }
    for (Stream& stream : ring) stream.synchronize();
    CHECK(value == rounds);
    CHECK(wrong == 0);
  }
}

TEST_CASE("a stream knows how long it has waited, and waits for what is complete take no time") {
  Gate gate;
  Stream recorder(Device::cpu(), {}), waiter(Device::cpu(), {.wait_timeout = 10s});
  Event event(Device::cpu(), "mark");
  recorder.submit([&] { gate.pass(); });
  recorder.record(event);
  CHECK(waiter.waited() == 0ns);
  waiter.wait(event);
  std::this_thread::sleep_for(30ms);
  gate.open();
  waiter.synchronize();
  const auto once = waiter.waited();
  CHECK(once > 0ns);
  CHECK(once < 10s);
  waiter.wait(event);
  waiter.synchronize();
  CHECK(waiter.waited() == once);
  CHECK(recorder.waited() == 0ns);
}

TEST_CASE("a wait refers to the record before it, not to a later one on the same stream") {
  Gate gate;
  Stream recorder(Device::cpu(), {});
  Stream waiter(Device::cpu(), {.wait_timeout = 10s});
  Event event(Device::cpu(), "mark");
  recorder.submit([] {});
  recorder.record(event);
  waiter.wait(event);
  recorder.submit([&] { gate.pass(); });
  recorder.record(event);
  waiter.synchronize();  // while the second record is not complete
  CHECK_FALSE(event.complete());
  gate.open();
}

TEST_CASE("a wait refers to the record before it, even when a later one on another stream completes first") {
  Gate gate;
  Stream slow(Device::cpu(), {}), quick(Device::cpu(), {}), waiter(Device::cpu(), {});
  Event event(Device::cpu(), "mark");
  bool slow_done = false, seen = false;
  slow.submit([&] {
    gate.pass();
    slow_done = true;
  });
  slow.record(event);
  waiter.wait(event);
  waiter.submit([&] { seen = slow_done; });
  quick.record(event);
  CHECK(event.complete());
  std::this_thread::sleep_for(10ms);
  gate.open();
  waiter.synchronize();
  CHECK(seen);
  slow.synchronize();
}

TEST_CASE("one record releases every stream that waits for it, each at its own position") {
  Gate gate;
  Stream recorder(Device::cpu(), {});
  std::array<Stream, 3> waiters = {Stream(Device::cpu(), {}), Stream(Device::cpu(), {}), Stream(Device::cpu(), {})};
  std::vector<Event> events;
  std::vector<int> order;
  std::array<std::size_t, 3> seen = {};
  recorder.submit([&] { gate.pass(); });
  for (std::size_t k = 0; k < waiters.size(); ++k) {
    recorder.submit([&order] { order.push_back(0); });
    events.emplace_back(Device::cpu(), "mark");
    recorder.record(events[k]);
    waiters[k].wait(events[k]);
    waiters[k].submit([&, k] { seen[k] = k + 1; });
  }
  gate.open();
  for (Stream& stream : waiters) stream.synchronize();
  CHECK(seen == std::array<std::size_t, 3>{1, 2, 3});
  recorder.synchronize();
  CHECK(order.size() == 3);
}

TEST_CASE("a stream that waits for its own earlier event goes on") {
  for (StreamMode mode : {StreamMode::queued, StreamMode::immediate}) {
    Gate gate;
    Stream stream(Device::cpu(), {.mode = mode, .queue_capacity = 4, .wait_timeout = 10s});
    Event event(Device::cpu(), "own");
    if (mode == StreamMode::queued) stream.submit([&] { gate.pass(); });
    stream.record(event);
    stream.wait(event);
    gate.open();
    stream.synchronize();
    CHECK(event.complete());
  }
}

TEST_CASE("an immediate stream blocks the host in wait until the event is complete") {
  std::atomic<bool> ran = false;
  Stream queued(Device::cpu(), {});
  Stream immediate(Device::cpu(), {.mode = StreamMode::immediate});
  Event event(Device::cpu(), "mark");
  queued.submit([&] {
    std::this_thread::sleep_for(20ms);
    ran = true;
  });
  queued.record(event);
  immediate.wait(event);
  CHECK(ran);
}

TEST_CASE("a wait that takes too long fails its stream, naming stream and event") {
  for (StreamMode mode : {StreamMode::queued, StreamMode::immediate}) {
    Gate gate;
    Stream stuck(Device::cpu(), {});
    Stream waiter(Device::cpu(), {.name = "compute", .mode = mode, .wait_timeout = 20ms});
    Event event(Device::cpu(), "unit 2 gathered");
    stuck.submit([&] { gate.pass(); });
    stuck.record(event);
    bool reached = false;
    waiter.wait(event);
    waiter.submit([&] { reached = true; });
    CHECK_THROWS_WITH_AS(waiter.synchronize(), doctest::Contains("stream \"compute\" waited 20 ms"), Error);
    CHECK_THROWS_WITH_AS(waiter.synchronize(), doctest::Contains("event \"unit 2 gathered\""), Error);
    CHECK_FALSE(reached);
    gate.open();
  }
}

TEST_CASE("a wait goes on as long again while it is told so") {
  for (StreamMode mode : {StreamMode::queued, StreamMode::immediate}) {
    Gate gate;
    std::atomic<int> asked = 0;
    Stream stuck(Device::cpu(), {});
    Stream waiter(Device::cpu(),
                  {.name = "compute", .mode = mode, .wait_timeout = 20ms, .goes_on = [&] { return ++asked < 3; }});
    Event event(Device::cpu(), "unit 2 gathered");
    stuck.submit([&] { gate.pass(); });
    stuck.record(event);
    const auto start = std::chrono::steady_clock::now();
    waiter.wait(event);
    CHECK_THROWS_AS(waiter.synchronize(), Error);
    CHECK(std::chrono::steady_clock::now() - start >= 60ms);
    CHECK(asked == 3);
    gate.open();
  }
}

// The other stream needs 400 ms in which the process runs, and the wait has 800 ms.
TEST_CASE("time in which the process is stopped is no waiting" * doctest::skip(!forked_processes_may_thread)) {
  const pid_t child = ::fork();
  if (child == 0) {
    Stream working(Device::cpu(), {});
    Stream waiter(Device::cpu(), {.wait_timeout = 800ms});
    Event event(Device::cpu(), "done");
    working.submit([] {
      for (int part = 0; part < 20; ++part) std::this_thread::sleep_for(20ms);
    });
    working.record(event);
    waiter.wait(event);
    try {
      waiter.synchronize();
    } catch (const Error&) {
      ::_exit(1);
    }
    ::_exit(0);
  }
  std::this_thread::sleep_for(100ms);
  ::kill(child, SIGSTOP);
  std::this_thread::sleep_for(1500ms);
  ::kill(child, SIGCONT);
  int status = -1;
  ::waitpid(child, &status, 0);
  CHECK(status == 0);
}

TEST_CASE("the longest wait_timeout that can be said is no short one") {
  Gate gate;
  Stream late(Device::cpu(), {});
  Event event(Device::cpu(), "mark");
  late.submit([&] { gate.pass(); });
  late.record(event);
  Stream stream(Device::cpu(), {.wait_timeout = std::chrono::milliseconds::max()});
  stream.wait(event);
  std::this_thread::sleep_for(50ms);
  gate.open();
  CHECK_NOTHROW(stream.synchronize());
}

TEST_CASE("event and recording stream may end before the wait for them runs") {
  Gate gate;
  Stream waiter(Device::cpu(), {});
  waiter.submit([&] { gate.pass(); });
  {
    Stream recorder(Device::cpu(), {.delay_seed = 1});
    Event event(Device::cpu(), "short-lived");
    recorder.submit([] { std::this_thread::sleep_for(5ms); });
    recorder.record(event);
    waiter.wait(event);
  }
  gate.open();
  waiter.synchronize();
}
