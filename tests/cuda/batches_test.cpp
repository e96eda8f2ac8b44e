// Batches on their way to a CUDA device, as the trainers send them.
#include <doctest/doctest.h>

#include <algorithm>
#include <span>
#include <vector>

#include "device_data.hpp"
#include "tessera/trainer/device_data.hpp"

using namespace tessera;
using namespace tessera::test;

namespace batches_test {

// Larger batches come later, and a host that has said what it sends uses the memory again.
TEST_CASE("cuda: batches arrive one after the other, each before the work that reads it") {
  constexpr std::size_t most = 4099;
  for (const StreamMode mode : {StreamMode::immediate, StreamMode::queued}) {
    CAPTURE(static_cast<int>(mode));
    Stream compute(Device::cuda(0), {.name = "compute", .mode = mode, .delay_seed = 5});
    tessera::trainer::OnDevice<float> batches;
    DeviceBuffer<float> sum(std::vector<float>(most, 0.0f));
    std::vector<float> expected(most, 0.0f);
    std::vector<float> values(most);
    for (std::size_t round = 0; round < 24; ++round) {
      const std::size_t count = round < 8 ? 100 + round : most;
      for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<float>((round * 31 + i) % 64);
      for (std::size_t i = 0; i < count; ++i) expected[i] += values[i];
      const std::span<const float> there = batches.put(compute, std::span<const float>(values).first(count));
      kernels::accumulate(compute, sum.data(), {there.data(), DType::fp32}, count);
      std::fill(values.begin(), values.end(), -1.0f);
    }
    compute.synchronize();
    CHECK(sum.values() == expected);
  }
}

}  // namespace batches_test
