// Meshes of replicas: on one mesh all strategies have the same bits, and sums have the order that numerics.md says.
#include <doctest/doctest.h>

#include <mutex>
#include <optional>
#include <vector>

#include "../extent.hpp"
#include "toy_model.hpp"

namespace mesh_test {

using namespace tessera;
using toy::Accumulation;
using toy::accumulations;
using toy::meshes;
using toy::MeshOfRanks;
using toy::Run;

Run on(const MeshOfRanks& mesh, const Run& base) {
  Run run = base;
  run.ranks = mesh.replicas * mesh.ranks_of_replica;
  run.options.replicas = static_cast<std::size_t>(mesh.replicas);
  return run;
}

// Shardings that no strategy has: one of the three kinds is kept by whom the others are not.
constexpr AxisSet in_replica = Axis::shard, on_each = AxisSet::all();
constexpr Sharding shardings[] = {{{}, in_replica, in_replica},
                                  {{}, {}, on_each},
                                  {in_replica, {}, in_replica},
                                  {in_replica, on_each, on_each},
                                  {on_each, in_replica, on_each}};

// Every strategy; where parameters are gathered every depth, resharding and overlap too, one of them at a time.
std::vector<Run> variants(const Run& base) {
  std::vector<Run> result;
  for (const Strategy strategy : all_strategies) {
    result.push_back(base);
    result.back().options.strategy = strategy;
    if (strategy.sharding.parameters.empty()) continue;
    const Run plain = result.back();
    for (const std::size_t prefetch : {std::size_t{0}, std::size_t{2}}) {
      result.push_back(plain);
      result.back().options.prefetch = prefetch;
    }
    result.push_back(plain);
    result.back().options.reshard_after_forward = false;
    for (const std::size_t prefetch : {std::size_t{0}, std::size_t{1}}) {
      if (strategy != Strategy::fsdp) continue;
      result.push_back(plain);
      result.back().options.prefetch = prefetch;
      result.back().options.reshard_after_forward = Axis::shard;
    }
    result.push_back(plain);
    result.back().options.overlap_reduction = false;
  }
  for (const Sharding& sharding : shardings) {
    result.push_back(base);
    result.back().options.sharding = sharding;
  }
  return result;
}

// Under the reduced matrix each variant of a mesh and a way to accumulate meets every third other one.
template <typename T>
void check_meshes(const Run& base) {
  int compared = 0;
  const std::size_t stride = tests::sanitized ? 13 : tests::reduced() ? 4 : 1;
  std::size_t index = 0;
  for (const MeshOfRanks& mesh : meshes) {
    for (const Accumulation& accumulation : accumulations()) {
      Run run = on(mesh, base);
      run.steps = 6;
      run.options.micro_batches = accumulation.micro_batches;
      run.options.accumulation = accumulation.mode;
      run.options.strategy = Strategy::ddp;
      std::optional<toy::Result> reference;
      for (const Run& variant : variants(run)) {
        if (++index % stride != 0) continue;
        if (!reference) reference = toy::train<T>(run);
        INFO(toy::describe(variant) << " replicas " << mesh.replicas);
        CHECK(toy::same_bits(toy::train<T>(variant), *reference));
        ++compared;
      }
    }
  }
  MESSAGE(compared << " runs compared with ddp on their mesh");
}

TEST_CASE("every_strategy_equals_ddp_bitwise_on_every_mesh") { check_meshes<float>(Run{}); }

TEST_CASE("every_strategy_equals_ddp_bitwise_on_every_mesh_in_bf16") {
  Run run{.options = {.precision = bf16_mixed}};
  check_meshes<bf16>(run);
}

TEST_CASE("every_strategy_equals_ddp_bitwise_on_every_mesh_in_fp16_with_overflows") {
  Run run{.options = {.precision = fp16_mixed}, .overflows = {0, 3}};
  check_meshes<fp16>(run);
}

TEST_CASE("every_strategy_equals_ddp_bitwise_on_every_mesh_with_frozen_parameters_and_mixed_units") {
  Run run{.options = {.precision = {DType::bf16, DType::bf16, DType::fp32}},
          .precisions = {{DType::bf16, DType::bf16, DType::fp32},
                         bf16_mixed,
                         {DType::bf16, DType::bf16, DType::int8, DType::int8}},
          .frozen = {0, 1, 2}};
  check_meshes<bf16>(run);
}

// Blocks of codes are the tensors', whoever has them, so that what windows read and what is summed is the same.
TEST_CASE("every_strategy_equals_ddp_bitwise_on_every_mesh_where_all_travels_in_codes") {
  Run run{.options = {.precision = {.wire = DType::int8, .gather = DType::int8}}};
  check_meshes<float>(run);
}

TEST_CASE("every_strategy_equals_ddp_bitwise_on_every_mesh_with_units_in_each_replica_in_fp16_with_overflows") {
  Run run{.options = {.precision = fp16_mixed}, .overflows = {1}, .in_replica = {1, 2}};
  check_meshes<fp16>(run);
}

TEST_CASE("test_modes_leave_the_bits_of_a_mesh_alone") {
  const std::pair<Strategy, Resharding> variants[] = {
      {Strategy::fsdp, true}, {Strategy::fsdp, Axis::shard}, {Strategy::hsdp, true}, {Strategy::hfsdp, true}};
  for (const auto& [strategy, resharding] : variants) {
    Run run = on({2, 2}, Run{});
    run.options.strategy = strategy;
    run.options.micro_batches = 2;
    const toy::Result reference = toy::train(run);
    run.options.reshard_after_forward = resharding;
    for (const std::uint64_t seed : {1u, 2u}) {
      run.options.diagnostics = {.delay_seed = seed, .poison = true, .touch = true, .queue_compute = true};
      CAPTURE(toy::describe(run));
      CHECK(toy::same_bits(toy::train(run), reference));
    }
  }
}

// Where a replica is one rank its sum is that rank's gradient, so the replicas' sum is the flat one.
TEST_CASE("replicas_of_one_rank_have_the_bits_of_one_replica") {
  Run flat{.ranks = 4};
  const toy::Result reference = toy::train(flat);
  for (const Strategy strategy : all_strategies) {
    Run run = on({4, 1}, Run{});
    run.options.strategy = strategy;
    CAPTURE(toy::describe(run));
    CHECK(toy::same_bits(toy::train(run), reference));
  }
}

// ---- the order of a sum ----

// One parameter, whose gradient on each rank is what the test says.
class Given : public Module {
 public:
  Given(std::size_t elements, int rank) : weight({elements}, Initial::zeros()), rank_(rank) {}
  void visit(ModuleVisitor& visitor) override { visitor("weight", weight); }
  void forward(Window&) {}
  void backward(Window& window, std::size_t micro);
  Parameter weight;

 private:
  int rank_;
};

// The values have such sizes that the order of additions shows in most elements.
float given(std::size_t element, int rank, std::size_t micro) {
  float value = 0.0f;
  Initial::uniform(-1.0f, 1.0f).fill({&value, 1}, 5, "given", (element * 64 + std::size_t(rank)) * 8 + micro);
  return value * static_cast<float>(std::uint64_t{1} << (element + std::size_t(rank) * 7 + micro * 3) % 20);
}

void Given::backward(Window& window, std::size_t micro) {
  if (!window.trains(weight)) return;
  const std::span<float> gradient = window.gradient<float>(weight);
  for (std::size_t i = 0; i < gradient.size(); ++i) gradient[i] = given(i, rank_, micro);
}

struct Sums {
  std::size_t replicas;
  std::size_t ranks;
  std::size_t micro_batches;
  AccumulationMode mode;
};

// Sums by hand: inside each replica in rank order, micro-batches in theirs, then the replicas.
float expected(const Sums& sums, std::size_t element) {
  const std::size_t ranks_of_replica = sums.ranks / sums.replicas;
  float total = 0.0f;
  for (std::size_t replica = 0; replica < sums.replicas; ++replica) {
    float of_replica = 0.0f;
    const auto add = [](float& to, float value, bool first) { to = first ? value : to + value; };
    const bool local = sums.mode == AccumulationMode::local;
    for (std::size_t outer = 0; outer < (local ? ranks_of_replica : sums.micro_batches); ++outer) {
      float part = 0.0f;
      for (std::size_t inner = 0; inner < (local ? sums.micro_batches : ranks_of_replica); ++inner) {
        const std::size_t rank = replica * ranks_of_replica + (local ? outer : inner);
        add(part, given(element, static_cast<int>(rank), local ? inner : outer), inner == 0);
      }
      add(of_replica, part, outer == 0);
    }
    total = replica == 0 ? of_replica : total + of_replica;
  }
  return total / static_cast<float>(sums.ranks * sums.micro_batches);
}

std::vector<float> reduced(const Sums& sums, Strategy strategy) {
  constexpr std::size_t elements = 1009;
  std::vector<float> result(elements);
  std::mutex mutex;
  launch({.ranks = static_cast<int>(sums.ranks)}, [&](World& world) {
    Given module(elements, world.rank());
    toy::Model model(world,
                     {.strategy = strategy,
                      .replicas = sums.replicas,
                      .micro_batches = sums.micro_batches,
                      .accumulation = sums.mode},
                     AdamW{.learning_rate = 0.0f}, module);
    for (std::size_t micro = 0; micro < sums.micro_batches; ++micro) {
      model.forward(module);
      model.backward(module, micro);
    }
    model.update();
    model.synchronize();
    const std::vector<float> whole = model.whole(module.weight, "gradient");
    const std::lock_guard lock(mutex);
    if (world.rank() == 0) result = whole;
  });
  return result;
}

TEST_CASE("a_sum_is_formed_inside_each_replica_and_then_over_the_replicas_in_their_order") {
  std::size_t differing = 0;
  for (const Sums& sums : {Sums{2, 4, 1, AccumulationMode::automatic}, Sums{2, 6, 3, AccumulationMode::reduced},
                           Sums{3, 6, 3, AccumulationMode::local}, Sums{1, 4, 2, AccumulationMode::reduced},
                           Sums{5, 5, 2, AccumulationMode::reduced}}) {
    for (const Strategy strategy : all_strategies) {
      INFO(sums.replicas << " replicas of " << sums.ranks << " ranks " << to_string(strategy));
      const std::vector<float> values = reduced(sums, strategy);
      for (std::size_t i = 0; i < values.size(); ++i) {
        const float by_hand = expected(sums, i);
        if (by_hand != expected({1, sums.ranks, sums.micro_batches, sums.mode}, i)) ++differing;
        REQUIRE(std::bit_cast<std::uint32_t>(values[i]) == std::bit_cast<std::uint32_t>(by_hand));
      }
    }
  }
  CHECK(differing > 1000);  // the order shows
}

// ---- the model on a mesh ----

TEST_CASE("a_number_of_replicas_that_does_not_divide_the_ranks_is_refused") {
  Run run{.options = {.replicas = 2}, .ranks = 3};
  CHECK_THROWS_WITH(toy::train(run),
                    doctest::Contains("replicas is 2, which does not divide the 3 ranks: choose a divisor"));
}

TEST_CASE("ranks_with_other_numbers_of_replicas_are_told_both") {
  const auto body = [](World& world) {
    Given module(7, world.rank());
    toy::Model model(world, {.strategy = Strategy::hsdp, .replicas = world.rank() == 1 ? 4u : 2u}, AdamW{}, module);
  };
  CHECK_THROWS_WITH(launch({.ranks = 4}, body),
                    doctest::Contains("ranks 0, 2, 3 with replicas = 2; rank 1 with replicas = 4"));
}

// Freezing and thawing moves every shard; the way back gives what was there.
TEST_CASE("recompile_on_a_mesh_carries_masters_and_states_over") {
  for (const Strategy strategy : {Strategy::fsdp, Strategy::hsdp, Strategy::hfsdp}) {
    INFO(to_string(strategy));
    launch({.ranks = 6}, [&](World& world) {
      Given first(1009, world.rank());
      Given second(300, world.rank());
      toy::Model model(world, {.strategy = strategy, .replicas = 3}, AdamW{.learning_rate = 0.1f}, first, second);
      const auto step = [&] {
        for (Given* module : {&first, &second}) model.forward(*module);
        for (Given* module : {&second, &first}) model.backward(*module, std::size_t{0});
        model.update();
      };
      step();
      const std::vector<float> weights = model.whole(first.weight);
      const std::vector<float> moments = model.whole(first.weight, "m");
      second.weight.set_frozen(true);
      model.recompile();
      CHECK(toy::same_bits(model.whole(first.weight), weights));
      CHECK(toy::same_bits(model.whole(first.weight, "m"), moments));
      step();
      CHECK_FALSE(toy::same_bits(model.whole(first.weight), weights));
    });
  }
}

}  // namespace mesh_test
