// A task throws, and these tests say what happens on its stream.
#include <doctest/doctest.h>

#include <stdexcept>
#include <thread>

#include "tessera/base/error.hpp"
#include "tessera/device/stream.hpp"

using namespace tessera;

namespace {

constexpr StreamMode modes[] = {StreamMode::queued, StreamMode::immediate};

[[noreturn]] void fail(const char* text) { throw std::runtime_error(text); }

}  // namespace

TEST_CASE("the first failure is kept, told once, and rethrown by every synchronize") {
  for (StreamMode mode : modes) {
    int told = 0;
    std::thread::id told_on, failed_on;
    Stream stream(Device::cpu(), {.mode = mode, .on_failure = [&](std::exception_ptr first) {
                                    ++told;
                                    told_on = std::this_thread::get_id();
                                    CHECK_THROWS_WITH(std::rethrow_exception(first), "first");
                                  }});
    CHECK(stream.failure() == nullptr);
    stream.rethrow_failure();
    stream.submit([&] {
      failed_on = std::this_thread::get_id();
      fail("first");
    });
    stream.submit([] { fail("second"); });
    CHECK_THROWS_WITH(stream.synchronize(), "first");
    CHECK_THROWS_WITH(stream.synchronize(), "first");
    CHECK_THROWS_WITH(stream.rethrow_failure(), "first");
    CHECK(stream.failure() != nullptr);
    CHECK(told == 1);
    CHECK(told_on == failed_on);
  }
}

TEST_CASE("tasks after a failure are dropped and destroyed") {
  for (StreamMode mode : modes) {
    int runs = 0;
    auto owned = std::make_shared<int>(0);
    const std::weak_ptr<int> watched = owned;
    Stream stream(Device::cpu(), {.mode = mode});
    stream.submit([&] { ++runs; });
    stream.submit([] { fail("broken"); });
    stream.submit([&runs, owned = std::move(owned)] { ++runs; });
    CHECK_THROWS_WITH(stream.synchronize(), "broken");
    CHECK(runs == 1);
    CHECK(watched.expired());
  }
}

TEST_CASE("events complete after a failure, and whoever waits for one that came after it fails, too") {
  for (StreamMode mode : modes) {
    Stream broken(Device::cpu(), {.mode = mode, .queue_capacity = 2});
    Stream other(Device::cpu(), {}), third(Device::cpu(), {.mode = mode});
    Event before(Device::cpu(), "before"), after(Device::cpu(), "after");
    broken.record(before);
    broken.submit([] { fail("broken"); });
    for (int k = 0; k < 10; ++k) broken.submit([] {});
    broken.record(after);
    bool reached = false, went_on = false;
    other.wait(before);
    other.submit([&] { reached = true; });
    other.wait(after);
    other.submit([&] { went_on = true; });
    CHECK_THROWS_WITH(other.synchronize(), "broken");
    CHECK(reached);
    CHECK_FALSE(went_on);
    CHECK(after.complete());
    third.wait(after);  // an event that is complete
    CHECK_THROWS_WITH(third.synchronize(), "broken");
    CHECK_THROWS_WITH(broken.synchronize(), "broken");
  }
}

TEST_CASE("on_failure has been called when an event after the failure is complete") {
  bool told = false;
  Stream broken(Device::cpu(), {.on_failure = [&](std::exception_ptr) { told = true; }});
  Stream other(Device::cpu(), {.mode = StreamMode::immediate});
  Event event(Device::cpu(), "after");
  broken.submit([] { fail("broken"); });
  broken.record(event);
  other.wait(event);
  CHECK(told);
}

TEST_CASE("destroying a failed stream does not throw") {
  Stream stream(Device::cpu(), {});
  stream.submit([] { fail("broken"); });
}
