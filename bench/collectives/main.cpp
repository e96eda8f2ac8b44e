// How long collectives take on arena memory, on whatever backend the program was started with: --ranks N for threads,
// mpirun for processes. One line for each collective and size, by rank 0: the median of its runs.
//
// usage: collectives [--ranks N] [MIB]...    MIB: bytes of the whole buffer, in MiB; default 1 16 256
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "tessera/base/error.hpp"
#include "tessera/comm/run.hpp"
#include "tessera/device/stream.hpp"

namespace {

using namespace tessera;

constexpr std::size_t most_mebibytes = 1 << 16;

std::size_t mebibytes_in(const std::string& text) {
  std::size_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc() && end == text.data() + text.size() && value > 0 && value <= most_mebibytes) return value;
  throw UsageError(fmt::format("\"{}\" is no number of MiB from 1 to {}", text, most_mebibytes));
}

// As many runs as take about a second, an odd number.
std::size_t runs_for(std::size_t mebibytes) { return std::clamp<std::size_t>(2000 / mebibytes, 7, 201) | 1; }

struct Case {
  World& world;
  Communicator& communicator;
  Stream& stream;
  std::size_t mebibytes;
};

void measure(const Case& run, const char* name, const std::function<void()>& collective) {
  std::vector<double> times;
  for (std::size_t i = 0; i < runs_for(run.mebibytes) + 2; ++i) {
    run.world.barrier("together");
    const auto begin = std::chrono::steady_clock::now();
    collective();
    run.stream.synchronize();
    times.push_back(std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count());
  }
  times.erase(times.begin(), times.begin() + 2);  // peers' memory is mapped by the first run
  std::nth_element(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2), times.end());
  if (run.world.rank() != 0) return;
  fmt::print("{} {} {} {} {:.4f}\n", run.world.backend_name(), run.world.size(), name, run.mebibytes,
             times[times.size() / 2]);
}

void measure_all(const Case& run) {
  const Bytes whole(run.mebibytes << 20);
  const auto ranks = static_cast<std::size_t>(run.world.size());
  const std::size_t shard = whole.count() / ranks / sizeof(float);
  Arena data = run.world.make_arena(whole);
  Arena result = run.world.make_arena(Bytes(shard * sizeof(float)));
  auto* const sum = reinterpret_cast<float*>(result.data());
  measure(run, "all-gather", [&] {
    run.communicator.all_gather(run.stream,
                                {.data = data.data(), .shard = Bytes(shard * sizeof(float)), .label = "gather"});
  });
  measure(run, "reduce-scatter", [&] {
    run.communicator.reduce_scatter(run.stream,
                                    {.data = data.data(), .result = sum, .shard_elements = shard, .label = "scatter"});
  });
  measure(run, "all-reduce", [&] {
    run.communicator.all_reduce(
        run.stream,
        {.data = reinterpret_cast<float*>(data.data()), .elements = whole.count() / sizeof(float), .label = "reduce"});
  });
}

}  // namespace

int main(int argc, char** argv) {
  return run(argc, argv, [](World& world, Arguments rest) {
    std::vector<std::size_t> sizes;
    for (const std::string& text : rest) sizes.push_back(mebibytes_in(text));
    if (sizes.empty()) sizes = {1, 16, 256};
    const auto communicator = world.make_communicator("bench");
    Stream stream(world.device(), {.name = "bench"});
    for (const std::size_t mebibytes : sizes) measure_all({world, *communicator, stream, mebibytes});
  });
}
