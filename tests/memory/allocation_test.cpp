// Once every segment has run once, the runtime allocates nothing: no heap, no mapping, on no thread of any rank.
#include <doctest/doctest.h>
#include <sys/mman.h>
#include <filesystem>

#include <functional>
#include <optional>

#include "../extent.hpp"
#include "data/allocation_counter.hpp"
#include "memory/require_probe.hpp"
#include "memory/trainee.hpp"

namespace allocation_test {

using namespace tessera;
using toy::Run;

// On the heap and as mappings, of all threads.
std::size_t taken_so_far() { return allocations_so_far() + probe::mappings().taken; }

// A layer that brings a stream of its own into its windows.
class JoiningLayer : public toy::Layer<float> {
 public:
  using Layer::Layer;
  const toy::Values& forward(Window& window, const toy::Values& x) {
    window.join(side_);
    return Layer::forward(window, x);
  }
  const toy::Values& backward(Window& window, const toy::Values& dy) {
    window.join(side_);
    return Layer::backward(window, dy);
  }

 private:
  Stream side_{Device::cpu(), {.name = "side"}};
};

// A layer whose windows sum, in 16 bits, and gather.
class CollectingLayer : public toy::Layer<float> {
 public:
  using Layer::Layer;
  void visit(ModuleVisitor& visitor) override {
    Layer::visit(visitor);
    visitor("sum", sum_), visitor("all", all_);
  }
  const toy::Values& forward(Window& window, const toy::Values& x) {
    collect<bf16>(window, sum_);
    collect<double>(window, all_);
    return Layer::forward(window, x);
  }
  const toy::Values& backward(Window& window, const toy::Values& dy) {
    collect<double>(window, all_);
    collect<bf16>(window, sum_);
    return Layer::backward(window, dy);
  }

 private:
  template <typename T>
  static void collect(Window& window, const Collective& collective) {
    const std::span<T> mine = window.contribution<T>(collective);
    kernels::fill_zero(window.stream(), mine.data(), Bytes(mine.size_bytes()));
    window.collect<T>(collective);
  }

  Collective sum_{7, {.kind = CollectiveKind::all_reduce, .type = DType::bf16, .evaluate = true}};
  Collective all_{3, {.evaluate = true}};
};

// `stray` happens once on each rank in the middle of what is counted; so do the steps that are traced, if any.
template <typename T, typename L = toy::Layer<T>>
std::size_t count_allocations(const Run& run, const std::function<void(World&)>& stray,
                              const std::optional<TraceSteps>& traced = std::nullopt) {
  std::size_t before = 0, after = 0;
  launch({.ranks = run.ranks, .timeout = std::chrono::seconds(20)}, [&](World& world) {
    toy::Trainee<T, L> trainee(world, run);
    trainee.run_every_segment();
    std::optional<Trace> trace;
    if (traced) trace.emplace(trainee.model().trace(*traced));
    world.barrier("every segment has run");
    if (world.rank() == 0) before = taken_so_far();
    world.barrier("counting");
    for (int step = 0; step < 5; ++step) {
      trainee.step();
      if (step == 2) stray(world);
    }
    trainee.evaluate();
    trainee.model().shards_changed();
    trainee.step();
    if (run.options.outer.every == 0) trainee.uneven_steps();
    trainee.model().last_step();
    trainee.model().synchronize();
    world.barrier("counted");
    if (world.rank() == 0) after = taken_so_far();
    world.barrier("the end");
    if (trace) CHECK(trace->complete());
  });
  return after - before;
}

template <typename T = float, typename L = toy::Layer<T>>
std::size_t count_allocations(const Run& run) {
  return count_allocations<T, L>(run, [](World&) {});
}

template <typename T = float, typename L = toy::Layer<T>>
void check(const Run& run) {
  CAPTURE(toy::describe(run));
  CHECK(count_allocations<T, L>(run) == 0);
}

TEST_CASE("nothing_is_allocated_once_every_segment_has_run") {
  REQUIRE_PROBE();
  for (const int ranks : {1, 2, 3, 7}) {
    for (const Strategy strategy : flat_strategies) {
      for (const toy::Accumulation& accumulation : toy::accumulations()) {
        for (const bool queue_compute : {false, true}) {
          Run run{.options = {.strategy = strategy,
                              .micro_batches = accumulation.micro_batches,
                              .accumulation = accumulation.mode,
                              .diagnostics = {.queue_compute = queue_compute}},
                  .ranks = ranks};
          check(run);
        }
      }
    }
  }
}

TEST_CASE("nothing_is_allocated_with_bf16_nor_with_other_depths_and_test_modes") {
  REQUIRE_PROBE();
  std::size_t turn = 0;
  for (const Strategy strategy : flat_strategies) {
    for (const std::size_t prefetch : {0u, 2u}) {
      if (tests::reduced() && ++turn % 4 > 1) continue;  // in turn, so that both are met
      Run run{.options = {.strategy = strategy,
                          .micro_batches = 3,
                          .prefetch = prefetch,
                          .reshard_after_forward = prefetch == 0},
              .ranks = 3};
      check(run);
      run.options.diagnostics = {.delay_seed = 1, .poison = true, .touch = true, .queue_compute = true};
      check(run);
      run.options.precision = bf16_mixed;
      check<bf16>(run);
      run.options.precision.masters = DType::bf16;
      check<bf16>(run);
    }
  }
}

TEST_CASE("nothing_is_allocated_with_fp16_wires_in_other_types_and_frozen_parameters") {
  REQUIRE_PROBE();
  for (const Strategy strategy : flat_strategies) {
    Run run{.options = {.strategy = strategy, .precision = fp16_mixed, .diagnostics = {.poison = true}},
            .ranks = 3,
            .precisions = {fp16_mixed, {DType::fp16, DType::fp16, DType::fp32}},
            .frozen = {0, 1, 2}};
    check<fp16>(run);
  }
}

TEST_CASE("nothing_is_allocated_whatever_is_reduced_together") {
  REQUIRE_PROBE();
  for (const Strategy strategy : flat_strategies) {
    for (const std::uint64_t cap : {0u, 3800u, 1u << 20}) {
      Run run{.options = {.strategy = strategy, .bucket_cap = Bytes(cap)}, .ranks = 3};
      check(run);
    }
  }
}

TEST_CASE("nothing_is_allocated_on_meshes_of_replicas") {
  REQUIRE_PROBE();
  for (const Strategy strategy : all_strategies) {
    Run run{.options = {.strategy = strategy, .replicas = 2, .micro_batches = 3}, .ranks = 4};
    check(run);
    run.options.precision = bf16_mixed;
    run.options.diagnostics.queue_compute = true;
    check<bf16>(run);
  }
}

TEST_CASE("nothing_is_allocated_with_granules") {
  REQUIRE_PROBE();
  for (const Strategy strategy : flat_strategies) {
    Run run{.options = {.strategy = strategy, .granules = 7}, .ranks = 3};
    check(run);
    run.options.precision = bf16_mixed;
    run.options.diagnostics = {.poison = true, .queue_compute = true};
    check<bf16>(run);
  }
}

TEST_CASE("nothing_is_allocated_with_outer_steps") {
  REQUIRE_PROBE();
  for (const Strategy strategy : {Strategy::ddp, Strategy::zero1, Strategy::hsdp}) {
    Run run{.options = {.strategy = strategy, .replicas = 2, .outer = {.every = 3, .fragments = 2}}, .ranks = 4};
    check(run);
    run.options.precision = bf16_mixed;
    run.options.diagnostics = {.poison = true, .queue_compute = true};
    check<bf16>(run);
  }
}

TEST_CASE("nothing_is_allocated_where_masters_and_states_stand_elsewhere") {
  REQUIRE_PROBE();
  for (const Strategy strategy : {Strategy::ddp, Strategy::zero2, Strategy::fsdp}) {
    Run run{.options = {.strategy = strategy, .offload = {.optimizer = MemorySpace::host}}, .ranks = 3};
    check(run);
    run.options.offload.masters = MemorySpace::host;
    run.options.precision = bf16_mixed;
    run.options.diagnostics = {.poison = true, .queue_compute = true};
    check<bf16>(run);
    run.options.offload.update = MemorySpace::host;
    run.options.offload.activations = MemorySpace::host;
    run.saves = true;
    check<bf16>(run);
    run.options.offload.update = MemorySpace::device;
    run.options.offload.optimizer = MemorySpace::disk;
    run.options.disk = std::filesystem::temp_directory_path();
    check<bf16>(run);
  }
}

TEST_CASE("nothing_is_allocated_when_windows_join_other_streams") {
  REQUIRE_PROBE();
  for (const Strategy strategy : flat_strategies) {
    Run run{.options = {.strategy = strategy, .diagnostics = {.queue_compute = true}}, .ranks = 2};
    check<float, JoiningLayer>(run);
  }
}

TEST_CASE("nothing_is_allocated_by_collectives_in_windows") {
  REQUIRE_PROBE();
  for (const bool queued : {false, true}) {
    Run run{.options = {.diagnostics = {.queue_compute = queued}}, .ranks = 2};
    check<float, CollectingLayer>(run);
  }
}

// y = outer(inner(x)), where the inner layer is a unit of its own, inside the outer one's window.
class Around : public Module {
 public:
  Around() : inner(5, 13, 3), outer_(13, 7, 3) {}
  void visit(ModuleVisitor& visitor) override { visitor("outer", outer_), visitor("inner", inner); }
  const toy::Values& forward(Window& window, const toy::Values& x) {
    return outer_.forward(window, window.forward(inner, x));
  }
  const toy::Values& backward(Window& window, const toy::Values& dy) {
    return window.backward(inner, outer_.backward(window, dy));
  }

  toy::Layer<float> inner;

 private:
  toy::Layer<float> outer_;
};

// With and without recomputation, for which calls of forward functions are kept.
TEST_CASE("nothing_is_allocated_when_windows_open_inside_others") {
  REQUIRE_PROBE();
  struct Case {
    Strategy strategy;
    bool recomputes;
  };
  for (const Case each : {Case{Strategy::ddp, false}, Case{Strategy::zero1, false}, Case{Strategy::zero2, true},
                          Case{Strategy::fsdp, false}, Case{Strategy::fsdp, true}}) {
    std::size_t before = 0, after = 0;
    launch({.ranks = 2, .timeout = std::chrono::seconds(20)}, [&](World& world) {
      Around around;
      const toy::Values x(3 * 5, 0.5f), dy(3 * 7, 0.25f);
      FullyShard model(world, {.strategy = each.strategy, .diagnostics = {.queue_compute = true}});
      model.add(around.inner, {.name = "inner", .recompute = each.recomputes});
      model.add(around, {.name = "around", .recompute = each.recomputes});
      const auto pass = [&] { model.forward(around, x), model.backward(around, dy); };
      const auto step = [&] { pass(), model.update(); };
      model.add_program({.pass = pass});
      model.finalize(AdamW{});
      step();
      model.skip_step();
      world.barrier("every segment has run");
      if (world.rank() == 0) before = taken_so_far();
      world.barrier("counting");
      for (int count = 0; count < 3; ++count) step();
      model.skip_step();
      model.synchronize();
      world.barrier("counted");
      if (world.rank() == 0) after = taken_so_far();
      world.barrier("the end");
    });
    CHECK(after - before == 0);
  }
}

TEST_CASE("nothing_is_allocated_while_steps_are_traced") {
  REQUIRE_PROBE();
  for (const Strategy strategy : flat_strategies) {
    for (const bool queue_compute : {false, true}) {
      Run run{.options = {.strategy = strategy, .micro_batches = 3, .diagnostics = {.queue_compute = queue_compute}},
              .ranks = 3};
      CAPTURE(toy::describe(run));
      const TraceSteps traced{.first = 3, .last = 5, .next = 2};
      CHECK(count_allocations<float>(
                run, [](World&) {}, traced) == 0);
    }
  }
}

// The counts of the tests above rest on this.
TEST_CASE("one_block_and_one_mapping_of_one_rank_in_the_middle_of_training_are_seen") {
  REQUIRE_PROBE();
  Run run{.ranks = 3};
  const std::size_t seen = count_allocations<float>(run, [](World& world) {
    if (world.rank() == 2) ::operator delete(::operator new(1));
    if (world.rank() == 1) ::munmap(::mmap(nullptr, 1, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), 1);
  });
  CHECK(seen == 2);
}

}  // namespace allocation_test
