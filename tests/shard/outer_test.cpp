// Outer steps: replicas train each by themselves, and every so often meet. What a step does inside a replica is what a
// job of its ranks would do; what an outer step does is computed by hand.
#include <doctest/doctest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "../extent.hpp"
#include "tessera/base/error.hpp"
#include "tessera/checkpoint/weights.hpp"
#include "tessera/optim/sgd.hpp"
#include "toy_model.hpp"

namespace outer_test {

using namespace tessera;
using toy::meshes;
using toy::MeshOfRanks;
using toy::Run;
using toy::Values;

const std::vector<toy::Accumulation> accumulations = toy::accumulations();

Run on(const MeshOfRanks& mesh, const OuterOptions& outer, const Run& base = {}) {
  Run run = base;
  run.ranks = mesh.replicas * mesh.ranks_of_replica;
  run.steps = 7;
  run.options.replicas = static_cast<std::size_t>(mesh.replicas);
  run.options.outer = outer;
  return run;
}

// ---- strategies and settings that leave the bits alone ----

// Every strategy; where parameters are gathered depth, resharding and overlap too, one of them at a time.
std::vector<Run> variants(const Run& base) {
  std::vector<Run> result(7, base);
  const Strategy strategies[] = {Strategy::zero1, Strategy::zero2, Strategy::fsdp};
  for (std::size_t i = 0; i < result.size(); ++i) {
    result[i].options.strategy = i < std::size(strategies) ? strategies[i] : Strategy::hsdp;
  }
  result[4].options.prefetch = 0;
  result[5].options.reshard_after_forward = false;
  result[6].options.overlap_reduction = false;
  return result;
}

std::vector<Run> bases(const Run& base) {
  std::vector<Run> result;
  std::size_t index = 0;
  for (const MeshOfRanks& mesh : meshes) {
    for (const std::size_t every : {1u, 2u, 3u}) {
      for (const std::size_t fragments : {1u, 2u}) {
        if (fragments > every) continue;
        result.push_back(
            on(mesh, {.every = every, .learning_rate = 0.7f, .momentum = 0.9f, .fragments = fragments}, base));
        result.back().options.micro_batches = accumulations[index % 3].micro_batches;
        result.back().options.accumulation = accumulations[index++ % 3].mode;
      }
    }
  }
  return result;
}

// Under the reduced matrix every third run, and of each two variants.
template <typename T>
void check_strategies(const Run& base) {
  int compared = 0;
  std::size_t index = 0;
  for (Run run : bases(base)) {
    if (tests::reduced() && index++ % 3 != 0) continue;
    run.options.strategy = Strategy::ddp;
    const toy::Result reference = toy::train<T>(run);
    std::size_t of_run = index;
    for (const Run& variant : variants(run)) {
      if (tests::reduced() && of_run++ % 4 != 0) continue;
      INFO(toy::describe(variant));
      CHECK(toy::same_bits(toy::train<T>(variant), reference));
      ++compared;
    }
  }
  MESSAGE(compared << " runs compared with ddp");
}

TEST_CASE("every_strategy_equals_ddp_bitwise_with_outer_steps") { check_strategies<float>(Run{}); }

TEST_CASE("every_strategy_equals_ddp_bitwise_with_outer_steps_in_bf16") {
  Run run{.options = {.precision = bf16_mixed}};
  check_strategies<bf16>(run);
}

TEST_CASE("every_strategy_equals_ddp_bitwise_with_outer_steps_frozen_parameters_and_mixed_units") {
  Run run{.precisions = {{DType::bf16, DType::bf16, DType::fp32}, bf16_mixed}, .frozen = {0, 1, 2}};
  check_strategies<bf16>(run);
}

TEST_CASE("test_modes_leave_the_bits_of_outer_steps_alone") {
  for (const Strategy strategy : {Strategy::ddp, Strategy::zero2, Strategy::hsdp}) {
    Run run = on({2, 2}, {.every = 2, .learning_rate = 0.7f, .momentum = 0.9f, .fragments = 2});
    run.options.strategy = strategy;
    run.options.micro_batches = 2;
    run.evaluate_every = 3;
    const toy::Result reference = toy::train(run);
    for (const std::uint64_t seed : {1u, 2u}) {
      run.options.diagnostics = {.delay_seed = seed, .poison = true, .touch = true, .queue_compute = true};
      CAPTURE(toy::describe(run));
      CHECK(toy::same_bits(toy::train(run), reference));
    }
  }
}

// ---- inside a replica ----

// Shards of another number of ranks, so norms may differ in their last bits: there is no clipping.
TEST_CASE("replicas_that_never_meet_are_as_many_jobs_of_their_ranks") {
  for (const MeshOfRanks& mesh : meshes) {
    for (const Strategy strategy : {Strategy::ddp, Strategy::zero1, Strategy::hsdp}) {
      Run run = on(mesh, {.every = 100, .learning_rate = 0.7f, .momentum = 0.9f});
      run.clip = 0.0f;
      run.options.strategy = strategy;
      run.options.micro_batches = 2;
      INFO(toy::describe(run));
      const toy::Result together = toy::train(run);
      for (int replica = 0; replica < mesh.replicas; ++replica) {
        Run job = run;
        job.ranks = mesh.ranks_of_replica;
        job.first_rank = replica * mesh.ranks_of_replica;
        job.options.replicas = 1;
        job.options.outer = {};
        for (const auto& [name, values] : toy::train(job).weights) {
          CHECK(toy::same_bits(values, together.weights.at(std::to_string(replica) + "/" + name)));
        }
      }
    }
  }
}

// ---- by hand ----

// Parameters whose gradients on each rank are what the test says: loss gradients of nothing.
class Given : public Module {
 public:
  explicit Given(std::size_t elements, int salt = 0) : weight({elements}, Initial::uniform(-1.0f, 1.0f)), salt_(salt) {}
  void visit(ModuleVisitor& visitor) override { visitor("weight", weight); }
  void forward(Window&) {}
  void backward(Window& window, int rank, int step) {
    if (!window.trains(weight)) return;
    const std::span<float> gradient = window.gradient<float>(weight);
    for (std::size_t i = 0; i < gradient.size(); ++i) gradient[i] = given(i, rank, step);
  }
  float given(std::size_t element, int rank, int step) const {
    float value = 0.0f;
    const auto seed = std::uint64_t(salt_ * 64 + step) * 64 + std::uint64_t(rank);
    Initial::uniform(-1.0f, 1.0f).fill({&value, 1}, 5, "given", seed * 4096 + element);
    return value;
  }
  Parameter weight;

 private:
  int salt_;
};

constexpr std::size_t elements = 1009;
constexpr float learning_rate = 0.125f;

struct Seen {
  Values weight, anchor, momentum, gradient;
};
// A History is by step and rank.
using History = std::vector<std::map<int, Seen>>;

void step(FullyShard& model, Given& module, int number) {
  model.forward(module);
  model.backward(module, model.world().rank(), number);
  model.update();
}

History watch(const Run& run) {
  History history(static_cast<std::size_t>(run.steps));
  std::mutex mutex;
  launch({.ranks = run.ranks}, [&](World& world) {
    Given module(elements);
    toy::Model model(world, run.options, Sgd{.learning_rate = learning_rate}, module);
    for (int number = 0; number < run.steps; ++number) {
      step(model, module, number);
      const Seen seen{model.whole(module.weight), model.whole(module.weight, "anchor"),
                      model.whole(module.weight, "outer momentum"), model.whole(module.weight, "gradient")};
      const std::lock_guard lock(mutex);
      history[std::size_t(number)][world.rank()] = seen;
    }
  });
  return history;
}

// The same in plain loops: Sgd inside each replica, and PyTorch's Nesterov SGD from the anchor.
class ByHand {
 public:
  explicit ByHand(const Run& run)
      : outer_(run.options.outer), replicas_(run.options.replicas), ranks_(std::size_t(run.ranks) / replicas_) {
    anchor.resize(elements);
    module_.weight.initial().fill(anchor, run.options.seed, "layer.weight", 0);
    momentum.resize(elements);
    weights.assign(replicas_, anchor);
    gradients.assign(replicas_, Values(elements));
  }

  void step(int number) {
    for (std::size_t replica = 0; replica < replicas_; ++replica) {
      for (std::size_t i = 0; i < elements; ++i) {
        float sum = 0.0f;
        for (std::size_t rank = 0; rank < ranks_; ++rank) {
          const float value = module_.given(i, static_cast<int>(replica * ranks_ + rank), number);
          sum = rank == 0 ? value : sum + value;
        }
        gradients[replica][i] = sum / static_cast<float>(ranks_);
        weights[replica][i] = std::fma(-learning_rate, gradients[replica][i], weights[replica][i]);
      }
    }
    if ((std::size_t(number) + 1) % outer_.every == 0) meet();
  }

  std::vector<Values> weights, gradients;  // by replica
  Values anchor, momentum;

 private:
  void meet() {
    for (std::size_t i = 0; i < elements; ++i) {
      float sum = weights[0][i];
      for (std::size_t replica = 1; replica < replicas_; ++replica) sum += weights[replica][i];
      const float mean = sum / static_cast<float>(replicas_);
      const float d = anchor[i] - mean;
      momentum[i] = outer_.momentum * momentum[i] + d;
      anchor[i] = (mean + (1.0f - outer_.learning_rate) * d) - outer_.learning_rate * outer_.momentum * momentum[i];
      for (Values& weight : weights) weight[i] = anchor[i];
    }
  }

  OuterOptions outer_;
  std::size_t replicas_, ranks_;
  Given module_{elements};
};

void check_by_hand(const Run& run) {
  INFO(toy::describe(run));
  const History history = watch(run);
  ByHand by_hand(run);
  for (int number = 0; number < run.steps; ++number) {
    CAPTURE(number);
    by_hand.step(number);
    for (const auto& [rank, seen] : history[std::size_t(number)]) {
      const std::size_t replica = std::size_t(rank) / (std::size_t(run.ranks) / run.options.replicas);
      CHECK(toy::same_bits(seen.weight, by_hand.weights[replica]));
      CHECK(toy::same_bits(seen.gradient, by_hand.gradients[replica]));
      CHECK(toy::same_bits(seen.anchor, by_hand.anchor));
      CHECK(toy::same_bits(seen.momentum, by_hand.momentum));
    }
  }
}

constexpr Strategy strategies[] = {Strategy::ddp, Strategy::zero1, Strategy::zero2, Strategy::fsdp, Strategy::hsdp};

TEST_CASE("after_each_step_with_learning_rate_1_and_no_momentum_is_averaging") {
  for (const MeshOfRanks& mesh : meshes) {
    for (const Strategy strategy : strategies) {
      Run run = on(mesh, {.every = 1, .learning_rate = 1.0f, .momentum = 0.0f});
      run.steps = 3;
      run.options.strategy = strategy;
      check_by_hand(run);
    }
  }
}

TEST_CASE("outer_steps_are_nesterovs_sgd_from_the_anchor") {
  for (const MeshOfRanks& mesh : meshes) {
    for (const std::size_t every : {2u, 3u}) {
      Run run = on(mesh, {.every = every, .learning_rate = 0.7f, .momentum = 0.9f});
      run.steps = static_cast<int>(3 * every) + 1;
      run.options.strategy = strategies[every];
      check_by_hand(run);
    }
  }
}

// ---- several units ----

// Two units of equal size on two replicas of two ranks.
struct Pair {
  explicit Pair(World& world, const FullyShardOptions& options) : model(world, options) {
    model.add(first, "first");
    model.add(second, "second");
  }
  void step(int number) {
    for (Given* module : {&first, &second}) model.forward(*module);
    for (Given* module : {&second, &first}) model.backward(*module, model.world().rank(), number);
    model.update();
  }
  bool replicas_agree(const Given& module) {
    const Values whole = model.whole(module.weight);
    const auto all = model.world().gather(std::as_bytes(std::span<const float>(whole)), "weights");
    const std::size_t bytes = whole.size() * sizeof(float);
    for (std::size_t at = 0; at < all.size(); at += bytes) {
      if (std::memcmp(all.data(), all.data() + at, bytes) != 0) return false;
    }
    return true;
  }
  Given first{elements, 1}, second{elements, 2};
  FullyShard model;
};

FullyShardOptions options_of(const OuterOptions& outer, Strategy strategy = Strategy::hsdp) {
  return {.strategy = strategy, .replicas = 2, .outer = outer};
}

TEST_CASE("fragments_take_turns") {
  launch({.ranks = 4}, [](World& world) {
    Pair pair(world, options_of({.every = 4, .learning_rate = 0.7f, .momentum = 0.9f, .fragments = 2}));
    pair.model.finalize(Sgd{.learning_rate = learning_rate});
    for (int number = 0; number < 9; ++number) {
      pair.step(number);
      const bool first = pair.replicas_agree(pair.first), second = pair.replicas_agree(pair.second);
      CAPTURE(number);
      CHECK(first == (number % 4 == 3));
      CHECK(second == (number % 4 == 1));
    }
  });
}

TEST_CASE("a_count_of_steps_that_was_set_decides_when_outer_steps_are_due") {
  launch({.ranks = 4}, [](World& world) {
    Pair pair(world, options_of({.every = 4, .learning_rate = 0.7f, .momentum = 0.9f}));
    pair.model.finalize(Sgd{.learning_rate = learning_rate});
    kernels::StepScalars scalars = pair.model.step_scalars();
    scalars.step = 4;
    scalars.skipped_steps = 2;
    pair.model.set_step_scalars(scalars);
    pair.step(0);
    CHECK_FALSE(pair.replicas_agree(pair.first));
    pair.step(1);
    CHECK(pair.replicas_agree(pair.first));
  });
}

TEST_CASE("a_step_is_skipped_by_the_replica_that_overflowed_alone_and_counts_for_outer_steps") {
  launch({.ranks = 4}, [](World& world) {
    Given module(elements);
    toy::Model model(world, options_of({.every = 2, .learning_rate = 0.7f, .momentum = 0.9f}),
                     Sgd{.learning_rate = learning_rate}, module);
    const Values before = model.whole(module.weight);
    for (int number = 0; number < 2; ++number) {
      model.forward(module);
      model.within(model.unit(0), plan::WindowKind::backward, [&](Window& window) {
        module.backward(window, world.rank(), number);
        const bool overflows = number == 0 && world.rank() == 3;
        if (overflows) window.gradient<float>(module.weight)[0] = std::numeric_limits<float>::infinity();
      });
      model.update();
      const bool skipped = number == 0 && world.rank() >= 2;
      CHECK(model.last_step().skipped == skipped);
      if (number == 0) CHECK(toy::same_bits(model.whole(module.weight), before) == skipped);
    }
    CHECK(toy::same_bits(model.whole(module.weight), model.whole(module.weight, "anchor")));
  });
}

TEST_CASE("hooks_see_the_gradient_of_the_replica_and_what_they_write_counts") {
  for (const Strategy strategy : strategies) {
    INFO(to_string(strategy));
    launch({.ranks = 4}, [&](World& world) {
      Given module(elements);
      FullyShard model(world, options_of({.every = 2, .learning_rate = 0.7f, .momentum = 0.9f}, strategy));
      model.add(module);
      model.on_reduced_gradient([](const ReducedGradient& gradient) {
        gradient.stream.submit([pieces = gradient.pieces] {
          for (const ParameterPiece& piece : pieces) {
            for (float& value : piece.values) value *= 2.0f;
          }
        });
      });
      model.finalize(Sgd{.learning_rate = learning_rate});
      step(model, module, 0);
      const Values whole = model.whole(module.weight, "gradient");
      const int first = world.rank() / 2 * 2;
      double squares = 0.0;
      for (std::size_t i = 0; i < elements; ++i) {
        const float sum = module.given(i, first, 0) + module.given(i, first + 1, 0);
        REQUIRE(whole[i] == sum / 2.0f * 2.0f);
        squares += double(sum) * double(sum);
      }
      CHECK(model.last_step().gradient_norm == doctest::Approx(std::sqrt(squares)).epsilon(1e-6));
      CHECK(model.gradient_norms().front().norm == doctest::Approx(std::sqrt(squares)).epsilon(1e-6));
    });
  }
}

// Freezing and thawing moves every shard; what thaws sets out from its weights, with the momentum that it had. Between
// outer steps replicas differ, so nothing is frozen there.
TEST_CASE("recompile_carries_the_anchor_and_the_outer_momentum_over") {
  for (const Strategy strategy : strategies) {
    INFO(to_string(strategy));
    launch({.ranks = 4}, [&](World& world) {
      Pair pair(world, options_of({.every = 2, .learning_rate = 0.7f, .momentum = 0.9f}, strategy));
      pair.model.finalize(AdamW{.learning_rate = 0.1f});
      const auto freeze_second = [&] {
        pair.second.weight.set_frozen(true);
        pair.model.recompile();
      };
      for (int number = 0; number < 3; ++number) pair.step(number);
      CHECK_THROWS_WITH_AS(freeze_second(), doctest::Contains("weight is to be frozen 1 updates after an outer step"),
                           UsageError);
      pair.second.weight.set_frozen(false);
      pair.model.recompile();
      pair.step(3);  // the fourth: an outer step
      const auto seen = [&](const Given& module) {
        return std::vector<Values>{pair.model.whole(module.weight), pair.model.whole(module.weight, "m"),
                                   pair.model.whole(module.weight, "anchor"),
                                   pair.model.whole(module.weight, "outer momentum")};
      };
      const std::vector<Values> before = seen(pair.first);
      const Values frozen = pair.model.whole(pair.second.weight);
      const Values momentum = pair.model.whole(pair.second.weight, "outer momentum");
      CHECK(momentum != Values(elements, 0.0f));
      freeze_second();
      CHECK(seen(pair.first) == before);
      for (int number = 4; number < 6; ++number) pair.step(number);
      CHECK(pair.replicas_agree(pair.first));
      CHECK(pair.replicas_agree(pair.second));
      pair.second.weight.set_frozen(false);
      pair.model.recompile();
      CHECK(toy::same_bits(pair.model.whole(pair.second.weight), frozen));
      CHECK(toy::same_bits(pair.model.whole(pair.second.weight, "outer momentum"), momentum));
      for (const ParameterPiece& piece : pair.model.pieces(pair.model.unit(1), "anchor")) {
        const auto weights = std::span<const float>(frozen).subspan(piece.first, piece.values.size());
        CHECK(std::equal(weights.begin(), weights.end(), piece.values.begin()));
      }
    });
  }
}

// A module without parameters takes no part, wherever it stands.
class Nothing final : public Module {
 public:
  void visit(ModuleVisitor& visitor) override { visitor("mean", mean); }
  void forward(Window&) {}
  void backward(Window&) {}
  Buffer mean{{4}};
};

TEST_CASE("units_that_have_nothing_to_train_take_no_part_in_outer_steps") {
  for (const std::size_t place : {0u, 1u, 2u}) {
    for (const std::size_t fragments : {1u, 2u}) {
      launch({.ranks = 4}, [&](World& world) {
        Given first(elements), second(401, 1);
        Nothing nothing;
        FullyShard model(world, options_of({.every = 2, .fragments = fragments}));
        for (std::size_t i = 0; i < 3; ++i) {
          if (i == place) {
            model.add(nothing);
          } else {
            i == (place == 0 ? 1u : 0u) ? model.add(first) : model.add(second);
          }
        }
        model.finalize(Sgd{.learning_rate = learning_rate});
        CHECK(model.plan().find_outer(fragments - 1).has_value());
      });
    }
  }
}

// ---- what cannot be ----

void finalize(World& world, const FullyShardOptions& options) {
  Pair pair(world, options);
  pair.model.finalize(AdamW{});
}

// The plan refuses what it cannot have itself (tests/plan/outer_test.cpp).
TEST_CASE("outer_steps_that_cannot_be_are_refused") {
  const auto with = [](const FullyShardOptions& options) {
    return [options] { launch({.ranks = 4}, [&](World& world) { finalize(world, options); }); };
  };
  CHECK_THROWS_WITH(with(options_of({.every = 3, .learning_rate = 0.0f}))(),
                    doctest::Contains("outer.learning_rate is 0: choose a finite one above 0"));
  CHECK_THROWS_WITH(with(options_of({.every = 3, .momentum = 1.0f}))(),
                    doctest::Contains("outer.momentum is 1: choose one in [0, 1)"));
}

TEST_CASE("ranks_that_disagree_about_outer_steps_are_told_both") {
  const auto with = [](const OuterOptions& ours, const OuterOptions& theirs) {
    return [=] {
      launch({.ranks = 4}, [&](World& world) { finalize(world, options_of(world.rank() == 1 ? theirs : ours)); });
    };
  };
  CHECK_THROWS_WITH(with({.every = 2}, {.every = 3})(),
                    doctest::Contains("ranks 0, 2, 3 with outer.every = 2; rank 1 with outer.every = 3"));
  CHECK_THROWS_WITH(with({.every = 2}, {.every = 2, .momentum = 0.5f})(),
                    doctest::Contains("ranks 0, 2, 3 with outer.momentum = 0; rank 1 with outer.momentum = 0.5"));
}

// The file has what all replicas had in common last, and gives them all what it has.
TEST_CASE("a_file_of_weights_has_what_the_replicas_had_in_common_and_goes_to_all_of_them") {
  const char* const folder = std::getenv("TMPDIR");
  const std::filesystem::path path = std::filesystem::path(folder == nullptr ? "/tmp" : folder) /
                                     ("outer-" + std::to_string(::getpid()) + ".safetensors");
  launch({.ranks = 6}, [&](World& world) {
    FullyShardOptions options = options_of({.every = 2, .learning_rate = 0.7f, .momentum = 0.9f});
    options.replicas = 3;
    Pair pair(world, options);
    pair.second.weight.set_frozen(true);
    pair.model.finalize(AdamW{});
    for (int step = 0; step < 2; ++step) pair.step(step);
    const Values common = pair.model.whole(pair.first.weight);
    const Values frozen = pair.model.whole(pair.second.weight);
    pair.step(2);  // from here on replicas differ
    CHECK_FALSE(pair.replicas_agree(pair.first));
    dump_weights(pair.model, path);
    pair.step(3);
    load_weights(pair.model, path);
    CHECK(pair.replicas_agree(pair.first));
    CHECK(toy::same_bits(pair.model.whole(pair.first.weight), common));
    CHECK(toy::same_bits(pair.model.whole(pair.first.weight, "anchor"), common));
    CHECK(toy::same_bits(pair.model.whole(pair.second.weight), frozen));
  });
  std::filesystem::remove(path);
}

TEST_CASE("states_of_outer_steps_have_names") {
  launch({.ranks = 2}, [](World& world) {
    Pair pair(world, options_of({.every = 3}));
    pair.model.finalize(AdamW{});
    CHECK_THROWS_WITH(pair.model.pieces(pair.model.unit(0), "nothing"),
                      doctest::Contains("there are master, gradient, m, v, anchor, outer momentum"));
  });
}

}  // namespace outer_test
