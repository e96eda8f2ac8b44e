// Planned bytes equal measured bytes: every category, and the arena, on every rank, before and after training.
#include <doctest/doctest.h>

#include <filesystem>
#include <mutex>
#include <string>
#include <vector>

#include "memory/measured.hpp"
#include "memory/require_probe.hpp"
#include "memory/trainee.hpp"
#include "probe/memory_report.hpp"
#include "tessera/plan/memory.hpp"

namespace planned_bytes_test {

using namespace tessera;
using toy::Run;

struct Observed {
  std::vector<probe::RankMemory> finalized;
  std::vector<probe::RankMemory> trained;
  Bytes mapped;  // by finalize, on all ranks together
  std::size_t mappings = 0;
};

template <typename T>
Observed observe(const Run& run) {
  Observed observed;
  launch({.ranks = run.ranks, .timeout = std::chrono::seconds(20)}, [&](World& world) {
    const probe::Mappings before = probe::mappings();
    world.barrier("before");
    toy::Trainee<T> trainee(world, run);
    world.barrier("finalized");
    const probe::Mappings after = probe::mappings();
    const auto finalized = probe::gather(world, probe::measure(trainee.model()));
    trainee.run_every_segment();
    trainee.step();
    trainee.model().synchronize();
    const auto trained = probe::gather(world, probe::measure(trainee.model()));
    if (world.rank() == 0) observed = {finalized, trained, after.size - before.size, after.count - before.count};
  });
  return observed;
}

template <typename T>
void check(const Run& run) {
  CAPTURE(toy::describe(run));
  const Observed observed = observe<T>(run);
  REQUIRE(observed.finalized.size() == std::size_t(run.ranks));
  measured::check_as_planned(observed.finalized);
  measured::check_as_planned(observed.trained);
  Bytes planned;
  for (const probe::RankMemory& rank : observed.finalized) planned += rank.peak.planned;
  CHECK(observed.mapped.count() == planned.count());
  const Offload& offload = run.options.offload;
  const auto goes = [&](MemorySpace to) { return offload.optimizer == to || offload.masters == to ? 1u : 0u; };
  const std::size_t host = std::max(run.offloaded.empty() ? 0u : 1u, goes(MemorySpace::host));
  CHECK(observed.mappings == std::size_t(run.ranks) * (1 + host + goes(MemorySpace::disk)));  // one for each space
}

// prefetch and reshard_after_forward mean something to fsdp alone.
template <typename Function>
void for_each_variant(Run run, Function function) {
  for (const Strategy strategy : {Strategy::ddp, Strategy::zero1, Strategy::zero2}) {
    run.options.strategy = strategy;
    function(run);
  }
  run.options.strategy = Strategy::fsdp;
  for (const std::size_t prefetch : {0u, 1u, 2u}) {
    for (const bool reshard : {true, false}) {
      run.options.prefetch = prefetch;
      run.options.reshard_after_forward = reshard;
      function(run);
    }
  }
}

template <typename T>
void check_matrix(Precision precision) {
  int checked = 0;
  for (const int ranks : {1, 2, 3, 4, 7}) {
    for (const toy::Accumulation& accumulation : toy::accumulations()) {
      Run base{.options = {.precision = precision,
                           .micro_batches = accumulation.micro_batches,
                           .accumulation = accumulation.mode},
               .ranks = ranks};
      for_each_variant(base, [&](const Run& run) {
        check<T>(run);
        ++checked;
      });
    }
  }
  MESSAGE(checked << " plans measured");
}

TEST_CASE("planned_bytes_equal_measured_bytes") {
  REQUIRE_PROBE();
  check_matrix<float>(fp32_precision);
}

TEST_CASE("planned_bytes_equal_measured_bytes_with_bf16_parameters_gradients_and_wire") {
  REQUIRE_PROBE();
  check_matrix<bf16>(bf16_mixed);
}

TEST_CASE("planned_bytes_equal_measured_bytes_with_other_types_on_the_wire_frozen_parameters_and_a_users_block") {
  REQUIRE_PROBE();
  for (const Strategy strategy : flat_strategies) {
    for (const int ranks : {1, 3}) {
      Run run{.options = {.strategy = strategy, .precision = fp16_mixed}, .ranks = ranks};
      check<fp16>(run);
      run.precisions = {fp16_mixed, {DType::fp16, DType::fp16, DType::fp32}, {DType::fp16, DType::fp16, DType::bf16}};
      check<fp16>(run);
      run.frozen = {0, 1, 2};
      check<fp16>(run);
      run.options.activations = Bytes(70'001);
      check<fp16>(run);
    }
  }
}

template <typename T>
void check_meshes(Precision precision) {
  for (const Strategy strategy : all_strategies) {
    for (const std::size_t replicas : {2u, 3u, 6u}) {
      Run run{.options = {.strategy = strategy, .replicas = replicas, .precision = precision, .micro_batches = 2},
              .ranks = 6};
      check<T>(run);
      run.frozen = {0, 1, 2};
      check<T>(run);
    }
  }
}

TEST_CASE("planned_bytes_equal_measured_bytes_of_granules") {
  REQUIRE_PROBE();
  for (const Strategy strategy : all_strategies) {
    for (const int ranks : {1, 3, 6}) {
      if (ranks < 6 && strategy.name.starts_with("h")) continue;
      Run run{.options = {.strategy = strategy, .replicas = ranks == 6 ? 2u : 1u, .granules = 6}, .ranks = ranks};
      check<float>(run);
      run.options.precision = bf16_mixed;
      check<bf16>(run);
    }
  }
}

TEST_CASE("planned_bytes_equal_measured_bytes_of_shardings_that_no_strategy_has") {
  REQUIRE_PROBE();
  const AxisSet whole, shard = Axis::shard, all = AxisSet::all();
  for (const Sharding& sharding :
       {Sharding{whole, shard, shard}, Sharding{shard, whole, shard}, Sharding{all, shard, all}}) {
    Run run{.options = {.sharding = sharding, .replicas = 2}, .ranks = 6};
    check<float>(run);
    run.options.precision = bf16_mixed;
    run.options.micro_batches = 2;
    check<bf16>(run);
  }
}

TEST_CASE("planned_bytes_equal_measured_bytes_on_meshes_of_replicas") {
  REQUIRE_PROBE();
  check_meshes<float>(fp32_precision);
  check_meshes<bf16>(bf16_mixed);
}

TEST_CASE("planned_bytes_equal_measured_bytes_of_units_in_each_replica") {
  REQUIRE_PROBE();
  for (const Strategy strategy : {Strategy::ddp, Strategy::zero2, Strategy::fsdp, Strategy::hfsdp}) {
    Run run{.options = {.strategy = strategy, .replicas = 2}, .ranks = 6, .in_replica = {1, 2}};
    check<float>(run);
    run.options.precision = bf16_mixed;
    run.options.micro_batches = 2;
    check<bf16>(run);
  }
}

TEST_CASE("planned_bytes_equal_measured_bytes_of_states_in_the_hosts_memory") {
  REQUIRE_PROBE();
  for (const Strategy strategy : flat_strategies) {
    Run run{.options = {.strategy = strategy}, .ranks = 3, .offloaded = {0, 2, 3}};
    check<float>(run);
    run.options.precision = bf16_mixed;
    run.options.micro_batches = 2;
    check<bf16>(run);
    run.frozen = {1, 2};
    run.options.offload.masters = MemorySpace::host;
    check<bf16>(run);
    run.options.offload.update = MemorySpace::host;
    run.saves = true;
    check<bf16>(run);
    run.options.offload.activations = MemorySpace::host;
    check<bf16>(run);
  }
}

TEST_CASE("planned_bytes_equal_measured_bytes_of_states_and_masters_on_disk") {
  REQUIRE_PROBE();
  for (const Strategy strategy : flat_strategies) {
    Run run{.options = {.strategy = strategy,
                        .offload = {.optimizer = MemorySpace::disk},
                        .disk = std::filesystem::temp_directory_path()},
            .ranks = 3};
    check<float>(run);
    run.options.precision = bf16_mixed;
    run.options.micro_batches = 2;
    run.frozen = {1, 2};
    run.options.offload.masters = MemorySpace::disk;
    check<bf16>(run);
    run.options.offload.optimizer = MemorySpace::host;
    check<bf16>(run);
  }
}

TEST_CASE("planned_bytes_equal_measured_bytes_of_moments_of_8_bits") {
  REQUIRE_PROBE();
  for (const Strategy strategy : {Strategy::ddp, Strategy::zero2, Strategy::fsdp}) {
    for (const int ranks : {1, 3}) {
      Run run{.options = {.strategy = strategy},
              .ranks = ranks,
              .widths = {5, 130, 131, 7, 3},
              .optimizer = toy::in_eight_bits};
      check<float>(run);
      run.options.precision = bf16_mixed;
      run.options.micro_batches = 2;
      if (strategy != Strategy::ddp) run.offloaded = {1, 2};
      check<bf16>(run);
    }
  }
}

TEST_CASE("planned_bytes_equal_measured_bytes_where_a_replicas_share_stays_until_backward") {
  REQUIRE_PROBE();
  for (const std::size_t replicas : {2u, 3u}) {
    for (const std::size_t prefetch : {0u, 1u}) {
      Run run{.options = {.replicas = replicas, .prefetch = prefetch, .reshard_after_forward = Axis::shard},
              .ranks = 6};
      check<float>(run);
      run.options.precision = bf16_mixed;
      run.options.micro_batches = 2;
      check<bf16>(run);
    }
  }
}

// Measures two programs over two layers: one trains the first and takes several micro-batches, the other the second and
// one.
std::vector<probe::RankMemory> measure_programs(int ranks, const FullyShardOptions& options) {
  std::vector<probe::RankMemory> figures;
  launch({.ranks = ranks, .timeout = std::chrono::seconds(20)}, [&](World& world) {
    toy::Layer<float> first(67, 131, 3), second(131, 7, 3);
    const toy::Values x(3 * 67, 0.5f), dy(3 * 7, 0.25f);
    FullyShard model(world, options);
    const Unit& of_often = model.add(first, "first");
    const Unit& of_once = model.add(second, "second");
    const auto pass = [&] {
      model.forward(second, model.forward(first, x));
      model.backward(first, model.backward(second, dy));
    };
    const TrainingProgram* programs[] = {
        &model.add_program({.name = "often", .pass = pass, .trains = {{&of_often}}, .micro_batches = 3}),
        &model.add_program({.name = "once", .pass = pass, .trains = {{&of_once}}, .micro_batches = 1})};
    model.finalize(AdamW{});
    for (int step = 0; step < 2; ++step) {
      for (const TrainingProgram* program : programs) {
        model.begin(*program);
        for (std::size_t micro = 0; micro < model.plan().micro_batches(program->index()); ++micro) pass();
        model.update();
      }
    }
    model.synchronize();
    const auto all = probe::gather(world, probe::measure(model));
    if (world.rank() == 0) figures = all;
  });
  return figures;
}

TEST_CASE("planned_bytes_equal_measured_bytes_of_programs_with_micro_batches_of_their_own") {
  REQUIRE_PROBE();
  for (const Strategy strategy : flat_strategies) {
    for (const AccumulationMode mode : {AccumulationMode::reduced, AccumulationMode::local}) {
      for (const int ranks : {1, 3}) {
        CAPTURE(to_string(strategy));
        CAPTURE(ranks);
        const auto figures = measure_programs(ranks, {.strategy = strategy, .accumulation = mode});
        REQUIRE(figures.size() == std::size_t(ranks));
        measured::check_as_planned(figures);
      }
    }
  }
}

TEST_CASE("planned_bytes_equal_measured_bytes_with_outer_steps") {
  REQUIRE_PROBE();
  for (const Strategy strategy : {Strategy::ddp, Strategy::zero1, Strategy::hsdp}) {
    for (const std::size_t replicas : {2u, 6u}) {
      Run run{.options = {.strategy = strategy, .replicas = replicas, .outer = {.every = 2, .fragments = 2}},
              .ranks = 6};
      check<float>(run);
      run.options.precision = bf16_mixed;
      run.options.diagnostics = {.poison = true, .touch = true, .queue_compute = true};
      check<bf16>(run);
    }
  }
}

TEST_CASE("planned_bytes_equal_measured_bytes_without_overlapped_reduction_and_in_test_modes") {
  REQUIRE_PROBE();
  for (const Strategy strategy : flat_strategies) {
    Run run{.options = {.strategy = strategy, .overlap_reduction = false}, .ranks = 3};
    check<float>(run);
    run.options.diagnostics = {.poison = true, .touch = true, .queue_compute = true};
    check<float>(run);
  }
}

// Merging keeps slots of gradients alive, and where they travel in another type, staging: 3800 bytes take two of the
// toy's units together, 1 MiB takes all.
TEST_CASE("planned_bytes_equal_measured_bytes_whatever_is_reduced_together") {
  REQUIRE_PROBE();
  for (const Strategy strategy : flat_strategies) {
    for (const std::uint64_t cap : {0u, 3800u, 1u << 20}) {
      Run run{.options = {.strategy = strategy, .bucket_cap = Bytes(cap)}, .ranks = 3};
      check<float>(run);
      run.options.precision = {DType::bf16, DType::bf16, DType::fp32};
      run.options.micro_batches = 2;
      run.options.accumulation = AccumulationMode::reduced;
      check<bf16>(run);
    }
  }
}

TEST_CASE("planned_bytes_equal_measured_bytes_where_ranks_own_only_padding_and_where_slots_take_many_pages") {
  REQUIRE_PROBE();
  for (const std::vector<std::size_t>& widths : {std::vector<std::size_t>{1, 1, 1}, {257, 521, 3, 1031}}) {
    Run run{.ranks = 7, .widths = widths};
    for (const Strategy strategy : flat_strategies) {
      run.options.strategy = strategy;
      check<float>(run);
    }
  }
}

// ---- attributed by address ----

bool inside(const FullyShard& model, plan::Category category, const void* address, std::size_t bytes) {
  const auto* first = static_cast<const std::byte*>(address);
  for (const MemoryRegion& region : model.regions()) {
    const std::byte* begin = region.memory.data();
    if (region.category == category) return begin <= first && first + bytes <= begin + region.memory.size();
  }
  return false;
}

// Asks in each window where the parameters and gradients stand that it shows.
class Watched : public toy::Layer<float> {
 public:
  using Layer::Layer;
  const toy::Values& forward(Window& window, const toy::Values& x) {
    const auto whole = window.parameter(weight);
    parameters_inside &= inside(*model, parameters, whole.data(), whole.size_bytes());
    return Layer::forward(window, x);
  }
  const toy::Values& backward(Window& window, const toy::Values& dy) {
    const auto whole = window.gradient(weight);
    gradients_inside &= inside(*model, gradients, whole.data(), whole.size_bytes());
    return Layer::backward(window, dy);
  }
  FullyShard* model = nullptr;
  plan::Category parameters = plan::Category::parameter_slots;
  plan::Category gradients = plan::Category::gradients;
  bool parameters_inside = true;
  bool gradients_inside = true;
};

TEST_CASE("what_the_user_sees_stands_in_the_region_of_its_category") {
  const auto check = [](Strategy strategy, int ranks) {
    Run run{.options = {.strategy = strategy}};
    launch({.ranks = ranks}, [&](World& world) {
      toy::Trainee<float, Watched> trainee(world, run);
      FullyShard& model = trainee.model();
      for (const auto& layer : trainee.layers()) {
        layer->model = &model;
        if (strategy != Strategy::fsdp || ranks == 1) layer->parameters = plan::Category::parameters;
        if (strategy != Strategy::ddp && ranks > 1) layer->gradients = plan::Category::gradient_slots;
      }
      trainee.run_every_segment();
      for (std::size_t u = 0; u < model.unit_count(); ++u) {
        const auto stands_in = [&](plan::Category category, std::string_view state) {
          const auto pieces = model.pieces(model.unit(u), state);
          return !pieces.empty() && std::all_of(pieces.begin(), pieces.end(), [&](const ParameterPiece& piece) {
            return inside(model, category, piece.values.data(), piece.values.size_bytes());
          });
        };
        if (world.rank() == 0) {  // it has a part of every unit
          CHECK(stands_in(plan::Category::parameters, "master"));
          CHECK(stands_in(plan::Category::optimizer, "m"));
          CHECK(stands_in(plan::Category::optimizer, "v"));
          CHECK_FALSE(stands_in(plan::Category::gradients, "master"));
        }
        CHECK(trainee.layers()[u]->parameters_inside);
        CHECK(trainee.layers()[u]->gradients_inside);
      }
    });
  };
  for (const Strategy strategy : flat_strategies) {
    for (const int ranks : {1, 2}) check(strategy, ranks);
  }
}

}  // namespace planned_bytes_test
