// Streams and events of CUDA devices: order, waits across streams and by the host, failures.
#include "tessera/device/stream.hpp"

#include <cuda_runtime.h>
#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <thread>

#include "device_data.hpp"
#include "tessera/base/error.hpp"
#include "tessera/device/cuda.hpp"
#include "tessera/device/time_stamps.hpp"

using namespace tessera;
using namespace tessera::test;
using namespace std::chrono_literals;

namespace {

constexpr std::size_t count = 4099;

Stream named(const char* name, StreamMode mode, std::optional<std::uint64_t> delays = std::nullopt) {
  return Stream(Device::cuda(0), {.name = name, .mode = mode, .delay_seed = delays});
}

}  // namespace

TEST_CASE("cuda: a value goes round a ring of streams in order, with and without delays") {
  for (const bool delayed : {false, true}) {
    const auto seed = [&](std::uint64_t s) { return delayed ? std::optional(s) : std::nullopt; };
    std::array<Stream, 3> ring = {named("a", StreamMode::queued, seed(1)), named("b", StreamMode::queued, seed(2)),
                                  named("c", StreamMode::immediate, seed(3))};
    std::array<Event, 3> passed = {Event(Device::cuda(0), "a"), Event(Device::cuda(0), "b"),
                                   Event(Device::cuda(0), "c")};
    DeviceBuffer<float> sum(std::vector<float>(count, 0.0f));
    DeviceBuffer<float> one(std::vector<float>(count, 1.0f));
    const int rounds = delayed ? 10 : 60;
    for (int round = 0; round < rounds; ++round) {
      for (std::size_t s = 0; s < 3; ++s) {
        const std::size_t before = (s + 2) % 3;
        if (passed[before].recorded()) ring[s].wait(passed[before]);
        kernels::accumulate(ring[s], sum.data(), {one.data(), DType::fp32}, count);
        kernels::divide(ring[s], sum.data(), s == 2 ? 2.0f : 1.0f, count);
        ring[s].record(passed[s]);
      }
    }
    for (Stream& stream : ring) stream.synchronize();
    float expected = 0.0f;
    for (int round = 0; round < rounds; ++round) expected = (expected + 3.0f) / 2.0f;
    CHECK(sum.values() == std::vector<float>(count, expected));
  }
}

TEST_CASE("cuda: a stream of the program's own is taken as it is, and left") {
  cudaStream_t own = nullptr;
  REQUIRE(cudaStreamCreateWithPriority(&own, cudaStreamNonBlocking, 0) == cudaSuccess);
  DeviceBuffer<float> data(std::vector<float>(count, 6.0f));
  {
    Stream before = cuda_stream(StreamMode::queued);
    Stream stream(Device::cuda(0), {.name = "own", .mode = StreamMode::immediate, .cuda_stream = own});
    CHECK(native_stream(stream) == own);
    Event divided(Device::cuda(0), "divided");
    kernels::divide(before, data.data(), 2.0f, count);
    before.record(divided);
    stream.wait(divided);
    kernels::divide(stream, data.data(), 3.0f, count);
  }
  CHECK(cudaMemsetAsync(data.data(), 0, sizeof(float), own) == cudaSuccess);  // it goes on
  CHECK(cudaStreamSynchronize(own) == cudaSuccess);
  CHECK(cudaStreamDestroy(own) == cudaSuccess);
  std::vector<float> expected(count, 1.0f);
  expected[0] = 0.0f;
  CHECK(data.values() == expected);
  CHECK_THROWS_AS(Stream(Device::cpu(), {.name = "cpu", .cuda_stream = own}), UsageError);
}

TEST_CASE("cuda: the host waits for an event of the device through an immediate stream of the CPU") {
  Stream stream = cuda_stream(StreamMode::queued);
  Stream host(Device::cpu(), {.name = "host", .mode = StreamMode::immediate});
  Event done(Device::cuda(0), "done");
  DeviceBuffer<float> data(std::vector<float>(count, 6.0f));
  kernels::divide(stream, data.data(), 2.0f, count);
  stream.record(done);
  host.wait(done);
  host.rethrow_failure();
  CHECK(done.complete());
}

TEST_CASE("cuda: an event of one device and a stream of another do not meet") {
  Stream stream = cuda_stream();
  Stream queued(Device::cpu(), {.name = "cpu queue"});
  Event on_cpu(Device::cpu(), "mark");
  Event on_cuda(Device::cuda(0), "mark");
  queued.record(on_cpu);
  stream.record(on_cuda);
  CHECK_THROWS_WITH_AS(stream.wait(on_cpu), doctest::Contains("cuda:0"), UsageError);
  CHECK_THROWS_AS(queued.wait(on_cuda), UsageError);
  queued.synchronize();
}

TEST_CASE("cuda: a wait for a record that is never issued ends, naming stream and event") {
  Stream stuck(Device::cuda(0), {.name = "stuck", .wait_timeout = 60'000ms});
  Stream waiting(Device::cuda(0), {.name = "waiting", .mode = StreamMode::immediate, .wait_timeout = 30ms});
  Event event(Device::cuda(0), "gathered");
  std::atomic<bool> go = false;
  stuck.submit([&] {
    while (!go) std::this_thread::yield();
  });
  stuck.record(event);
  waiting.wait(event);
  go = true;
  CHECK_THROWS_WITH_AS(waiting.rethrow_failure(), doctest::Contains("\"waiting\" waited 30 ms for event \"gathered\""),
                       Error);
  stuck.synchronize();
}

TEST_CASE("cuda: a failed task drops later ones, and events still complete") {
  Stream stream = cuda_stream(StreamMode::queued);
  Event after(Device::cuda(0), "after");
  bool ran = false;
  stream.submit([] { throw UsageError("a task that fails"); });
  stream.submit([&] { ran = true; });
  stream.record(after);
  CHECK_THROWS_WITH_AS(stream.synchronize(), "a task that fails", UsageError);
  CHECK_FALSE(ran);
  CHECK(after.complete());
}

TEST_CASE("cuda: a device that is not there is named with those that are") {
  CHECK_THROWS_WITH_AS(Device::cuda(-1), doctest::Contains("cuda:-1"), UnavailableError);
  CHECK_THROWS_WITH_AS(Device::cuda(cuda_device_count()), doctest::Contains("counted from 0"), UnavailableError);
}

TEST_CASE("cuda: an arena starts with zeros, and one that no device holds is refused with its size") {
  DeviceBuffer<float> to(1024);
  Arena arena(Device::cuda(0), Bytes(4096));
  Stream stream = cuda_stream();
  kernels::copy(stream, to.data(), arena.data(), Bytes(4096));
  stream.synchronize();
  CHECK(to.values() == std::vector<float>(1024, 0.0f));
  CHECK_THROWS_WITH_AS(Arena(Device::cuda(0), Bytes(std::uint64_t{1} << 50)),
                       doctest::Contains("1125899906842624 bytes"), MemoryError);
}

TEST_CASE("cuda: time stamps grow along a stream, and stand between the host's own looks at the clock") {
  Stream stream = cuda_stream(StreamMode::queued);
  TimeStamps stamps(Device::cuda(0), 4);
  DeviceBuffer<float> data(std::vector<float>(count, 6.0f));
  const auto now = [] { return std::chrono::steady_clock::now().time_since_epoch() / 1ns; };
  const std::int64_t before = now();
  for (std::size_t i = 0; i < 3; ++i) {
    stamps.take(stream, i);
    kernels::divide(stream, data.data(), 2.0f, count);
  }
  stream.synchronize();
  const std::int64_t after = now();
  const std::vector<std::int64_t>& times = stamps.nanoseconds();
  constexpr std::int64_t resolution = 1'000'000;  // of relating two clocks
  CHECK(times[0] >= before - resolution);
  CHECK(times[1] >= times[0]);
  CHECK(times[2] >= times[1]);
  CHECK(times[2] <= after + resolution);
  CHECK(times[3] == 0);
  CHECK_THROWS_AS(stamps.take(stream, 4), InternalError);
}
