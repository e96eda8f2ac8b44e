// A model's memory goes back when it ends, and the heap that it holds besides its arena is small and does not grow with
// it.
#include <doctest/doctest.h>

#include <algorithm>
#include <memory>

#include "data/allocation_counter.hpp"
#include "memory/require_probe.hpp"
#include "memory/trainee.hpp"

namespace returned_bytes_test {

using namespace tessera;
using toy::Run;

void train(World& world, const Run& run) {
  toy::Trainee<float> trainee(world, run);
  trainee.run_every_segment();
  trainee.step();
}

TEST_CASE("a_model_that_ends_gives_its_mapping_back") {
  REQUIRE_PROBE();
  for (const Strategy strategy : flat_strategies) {
    Run run{.options = {.strategy = strategy}, .ranks = 3};
    probe::Mappings before{}, after{};
    launch({.ranks = run.ranks}, [&](World& world) {
      if (world.rank() == 0) before = probe::mappings();
      world.barrier("before");
      train(world, run);
      world.barrier("gone");
      if (world.rank() == 0) after = probe::mappings();
    });
    CHECK(after.count == before.count);
    CHECK(after.size == before.size);
  }
}

TEST_CASE("a_job_that_ends_gives_its_heap_back") {
  REQUIRE_PROBE();
  for (const int ranks : {1, 3}) {
    CAPTURE(ranks);
    Run run{.ranks = ranks};
    const auto job = [&] { launch({.ranks = run.ranks}, [&](World& world) { train(world, run); }); };
    job();  // what the C and C++ libraries make on first use, once
    const std::int64_t before = live_blocks();
    job();
    job();
    CHECK(live_blocks() == before);
    const auto kept = std::make_unique<int>(1);
    CHECK(live_blocks() == before + 1);
  }
}

Bytes runtime_heap(const Run& run) {
  Bytes heap;
  launch({.ranks = run.ranks}, [&](World& world) {
    toy::Layer<float> first(run.widths[0], run.widths[1], 1), second(run.widths[1], run.widths[2], 1);
    const std::int64_t before = live_bytes_of_this_thread();
    toy::Model model(world, run.options, AdamW{}, first, second);
    const std::int64_t growth = live_bytes_of_this_thread() - before;
    if (world.rank() == 0) heap = Bytes(static_cast<std::uint64_t>(std::max<std::int64_t>(growth, 0)));
  });
  return heap;
}

// Streams' queues, the plan, events: control structures, whatever the number of parameters.
TEST_CASE("the_heap_of_the_runtime_does_not_grow_with_the_parameters") {
  REQUIRE_PROBE();
  for (const int ranks : {1, 3}) {
    for (const Strategy strategy : flat_strategies) {
      Run run{.options = {.strategy = strategy}, .ranks = ranks, .widths = {3, 5, 7}};
      const Bytes small = runtime_heap(run);
      run.widths = {301, 503, 401};  // a rank alone makes streams with queues for units of 2^18 elements and more
      const Bytes large = runtime_heap(run);
      MESSAGE(to_string(strategy) << ", " << ranks << " ranks: runtime_heap " << small.count() << " and "
                                  << large.count() << " bytes");
      CHECK(small > Bytes(0));
      CHECK(large < small + Bytes(8192));
      CHECK(large < Bytes(1 << 20));
    }
  }
}

}  // namespace returned_bytes_test
