// Copies to a device and from it that are slow: what waits for what between the host, the copy and the work that reads
// it.
#include <cuda_runtime.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <span>
#include <vector>

#include "device_data.hpp"
#include "echo.hpp"
#include "tessera/comm/run.hpp"
#include "tessera/optim/adamw.hpp"
#include "tessera/trainer/device_data.hpp"

using namespace tessera;
using namespace tessera::test;

namespace arrival_test {

struct SlowCopies {
  SlowCopies() { emulated::delay_copies(std::chrono::milliseconds(2)); }
  ~SlowCopies() { emulated::delay_copies({}); }
};

// The work reads each batch as soon as it may, and again by copies, which make it slower than the batches come.
TEST_CASE("emulated cuda: work waits for its batch, a batch for the work before it, and the host for both") {
  constexpr std::size_t count = 257;
  constexpr std::size_t rounds = 8;
  Stream compute = cuda_stream();
  tessera::trainer::OnDevice<float> batches;
  batches.reserve(compute, count);
  DeviceBuffer<float> first(std::vector<float>(count * rounds, 0.0f)), last(std::vector<float>(count * rounds, 0.0f));
  std::vector<float> expected, values(count);
  const SlowCopies slow;
  for (std::size_t round = 0; round < rounds; ++round) {
    for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<float>(round * count + i);
    expected.insert(expected.end(), values.begin(), values.end());
    const std::span<const float> there = batches.put(compute, std::span<const float>(values));
    kernels::accumulate(compute, first.data() + round * count, {there.data(), DType::fp32}, count);
    for (int again = 0; again < 2; ++again) {
      kernels::copy(compute, last.data() + round * count, there.data(), Bytes(there.size_bytes()));
    }
    std::fill(values.begin(), values.end(), -2.0f);
  }
  compute.synchronize();
  CHECK(first.values() == expected);
  CHECK(last.values() == expected);
}

std::vector<float> trained_with_updates_on_the_host(bool slowly) {
  std::optional<SlowCopies> slow;
  if (slowly) slow.emplace();
  std::vector<float> weights;
  launch({.ranks = 1, .device = DeviceChoice::cuda}, [&](World& world) {
    Echo echo(Initial::normal(0.0f, 1.0f));
    FullyShard model(
        world,
        {.precision = bf16_mixed,
         .offload = {.optimizer = MemorySpace::host, .masters = MemorySpace::host, .update = MemorySpace::host}});
    model.add(echo, "echo");
    model.finalize(AdamW{.learning_rate = 0.1f});
    for (int step = 0; step < 4; ++step) {
      model.forward(echo);
      model.backward(echo);
      model.update();
    }
    weights = model.whole(echo.weight);
  });
  return weights;
}

TEST_CASE(
    "emulated cuda: an update in the hosts_memory begins when its gradients have come, however long they travel") {
  CHECK(trained_with_updates_on_the_host(true) == trained_with_updates_on_the_host(false));
}

}  // namespace arrival_test
