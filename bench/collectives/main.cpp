// How long collectives take on arena memory, on whatever backend the program was started with: --ranks N for threads,
// mpirun for processes. One line for each collective and size, by rank 0: the median of its runs.
//
// Where ranks are threads, plain threads that make the same copies and sums take turns with each collective.
//
// usage: collectives [--ranks N] [MIB]...    MIB: bytes of the whole buffer, in MiB; default 1 16 256
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "collectives/plain.hpp"
#include "measure/timing.hpp"
#include "tessera/base/error.hpp"
#include "tessera/comm/run.hpp"
#include "tessera/device/stream.hpp"
#include "tessera/trainer/command_line.hpp"

namespace {

using namespace tessera;

constexpr std::size_t most_mebibytes = 1 << 16;

// Returns an odd number of runs that take about a second.
std::size_t runs_for(std::size_t mebibytes) { return std::clamp<std::size_t>(1000 / mebibytes, 7, 31) | 1; }

struct Case {
  World& world;
  Communicator& communicator;
  Stream& stream;
  std::size_t mebibytes;
};

// A contestant is a backend, or plain threads. `run` enqueues, where there is a stream.
struct Contestant {
  std::string_view backend;
  std::function<void()> run;
};

// Small collectives are timed several at a time, as a step has them: one after the other on a stream.
std::size_t calls_for(std::size_t mebibytes) { return std::max<std::size_t>(1, 64 / mebibytes); }

// Each in its turn; one line for each, its median.
void measure(const Case& run, const char* name, const std::vector<Contestant>& contestants) {
  std::vector<std::vector<double>> times(contestants.size());
  for (std::size_t i = 0; i < runs_for(run.mebibytes) + 2; ++i) {
    for (std::size_t who = 0; who < contestants.size(); ++who) {
      run.world.barrier("together");
      const auto begin = bench::Clock::now();
      const std::size_t calls = calls_for(run.mebibytes);
      for (std::size_t call = 0; call < calls; ++call) contestants[who].run();
      run.stream.synchronize();
      const double milliseconds = 1e3 * bench::seconds_since(begin) / static_cast<double>(calls);
      if (i >= 2) times[who].push_back(milliseconds);  // peers' memory is mapped by the first run
    }
  }
  for (std::size_t who = 0; who < contestants.size() && run.world.rank() == 0; ++who) {
    fmt::print("{} {} {} {} {:.4f}\n", contestants[who].backend, run.world.size(), name, run.mebibytes,
               bench::median(times[who]));
  }
}

void require(bool right, const char* what) {
  if (!right) throw InternalError(fmt::format("{} gave something else than it should", what));
}

// One rank's buffers. The whole holds the rank's number + 1 in every element.
struct Buffers {
  Buffers(World& world, std::size_t mebibytes)
      : elements(((mebibytes << 20) / sizeof(float))),
        shard(elements / static_cast<std::size_t>(world.size()) / 16 * 16),
        data_arena(world.make_arena(Bytes(elements * sizeof(float)))),
        sum_arena(world.make_arena(Bytes(shard * sizeof(float)))),
        data(reinterpret_cast<float*>(data_arena.data())),
        sum(reinterpret_cast<float*>(sum_arena.data())) {
    std::fill_n(data, elements, static_cast<float>(world.rank() + 1));
  }

  std::size_t elements;
  std::size_t shard;
  Arena data_arena;
  Arena sum_arena;
  float* data;
  float* sum;
};

void measure_scatter(const Case& run, Buffers& buffers, bench::PlainThreads* plain) {
  std::vector<Contestant> contestants{{run.world.backend_name(), [&] {
                                         run.communicator.reduce_scatter(
                                             run.stream, {.data = reinterpret_cast<std::byte*>(buffers.data),
                                                          .result = buffers.sum,
                                                          .shard_elements = buffers.shard,
                                                          .label = "scatter"});
                                       }}};
  if (plain != nullptr) {
    contestants.push_back({"plain", [&] { plain->reduce_scatter(buffers.sum, false); }});
    contestants.push_back({"plain-streaming", [&] { plain->reduce_scatter(buffers.sum, true); }});
  }
  const auto ranks = static_cast<float>(run.world.size());
  for (const Contestant& each : contestants) {
    std::fill_n(buffers.sum, buffers.shard, 0.0f);
    run.world.barrier("filled");
    each.run();
    run.stream.synchronize();
    require(buffers.sum[0] == ranks * (ranks + 1) / 2 && buffers.sum[buffers.shard - 1] == buffers.sum[0], "a sum");
  }
  measure(run, "reduce-scatter", contestants);
}

void measure_gather(const Case& run, Buffers& buffers, bench::PlainThreads* plain) {
  std::vector<Contestant> contestants{{run.world.backend_name(), [&] {
                                         run.communicator.all_gather(
                                             run.stream, {.data = reinterpret_cast<std::byte*>(buffers.data),
                                                          .shard = Bytes(buffers.shard * sizeof(float)),
                                                          .label = "gather"});
                                       }}};
  if (plain != nullptr) {
    contestants.push_back({"plain", [&] { plain->all_gather(false); }});
    contestants.push_back({"plain-streaming", [&] { plain->all_gather(true); }});
  }
  const auto ranks = static_cast<std::size_t>(run.world.size());
  for (const Contestant& each : contestants) {
    std::fill_n(buffers.data, buffers.elements, static_cast<float>(run.world.rank() + 1));
    run.world.barrier("filled");
    each.run();
    run.stream.synchronize();
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      require(buffers.data[(rank + 1) * buffers.shard - 1] == static_cast<float>(rank + 1), "a gather");
    }
  }
  measure(run, "all-gather", contestants);
}

void measure_all(const Case& run) {
  Buffers buffers(run.world, run.mebibytes);
  std::optional<bench::PlainThreads> plain;
  const auto ranks = static_cast<std::size_t>(run.world.size());
  if (run.world.backend_name() == "local") plain.emplace(run.world, buffers.data, buffers.shard * ranks);
  measure_scatter(run, buffers, plain ? &*plain : nullptr);
  measure_gather(run, buffers, plain ? &*plain : nullptr);
  measure(run, "all-reduce", {{run.world.backend_name(), [&] {
                                 run.communicator.all_reduce(run.stream, {.data = buffers.data,
                                                                          .elements = buffers.elements,
                                                                          .divisor = static_cast<float>(ranks),
                                                                          .label = "reduce"});
                               }}});
}

}  // namespace

int main(int argc, char** argv) {
  const char* about =
      "How long collectives take on arena memory, beside plain threads that make the same copies and sums.\n\n"
      "MIB... are the sizes of the whole buffer, in MiB: collectives [OPTION...] 1 16 256, the default.";
  return run(argc, argv, about, [](World& world, Arguments rest) {
    std::vector<std::size_t> sizes;
    for (const std::string& text : rest) sizes.push_back(trainer::whole_number("MIB", text, {1, most_mebibytes}));
    if (sizes.empty()) sizes = {1, 16, 256};
    const auto communicator = world.make_communicator("bench");
    Stream stream(world.device(), {.name = "bench"});
    for (const std::size_t mebibytes : sizes) measure_all({world, *communicator, stream, mebibytes});
  });
}
