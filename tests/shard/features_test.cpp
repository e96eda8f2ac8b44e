// Real models ask this of the runtime: frozen parameters, untrained state, units that are skipped, hooks, inspection.
#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <iterator>
#include <map>
#include <string>

#include "../windows.hpp"
#include "tessera/base/error.hpp"
#include "tessera/optim/sgd.hpp"
#include "tessera/plan/checkpoint_memory.hpp"
#include "toy_model.hpp"

namespace features_test {

using namespace tessera;
using plan::WindowKind;
using toy::Values;
using Layer = toy::Layer<float>;

struct Job : toy::TwoLayers {
  using TwoLayers::TwoLayers;
  void finalize() { model.finalize(AdamW{.learning_rate = 0.01f, .clip_norm = 0.1f}); }
  std::map<std::string, Values> all(std::string_view state = "master") {
    std::map<std::string, Values> result;
    for (const Layer* layer : {&first, &second}) {
      for (const Parameter* parameter : {&layer->weight, &layer->bias}) {
        if (state == "master" || !parameter->options().frozen)
          result[parameter->name()] = model.whole(*parameter, state);
      }
    }
    return result;
  }
};

template <typename Body>
void on_every_strategy(Body body) {
  for (const Strategy strategy : flat_strategies) {
    for (const int ranks : {1, 3, 5}) {
      FullyShardOptions options{.strategy = strategy, .diagnostics = {.poison = true, .touch = true}};
      CAPTURE(to_string(strategy));
      CAPTURE(ranks);
      launch({.ranks = ranks}, [&](World& world) { body(world, options); });
    }
  }
}

// ---- frozen ----

TEST_CASE("a_frozen_parameter_keeps_its_bits_while_the_others_learn") {
  on_every_strategy([](World& world, const FullyShardOptions& options) {
    Job job(world, options);
    job.first.weight.set_frozen(true);
    job.finalize();
    const auto before = job.all();
    for (int i = 0; i < 3; ++i) job.step();
    const auto after = job.all();
    for (const auto& [name, values] : after) {
      CHECK(toy::same_bits(values, before.at(name)) == (name == "first.weight"));
    }
    CHECK_THROWS_WITH_AS(job.model.whole(job.first.weight, "m"), doctest::Contains("first.weight is frozen"),
                         UsageError);
  });
}

TEST_CASE("recompiling_keeps_weights_and_states_and_trains_what_was_thawed") {
  on_every_strategy([](World& world, const FullyShardOptions& options) {
    Job job(world, options);
    job.second.weight.set_frozen(true);
    job.finalize();
    for (int i = 0; i < 3; ++i) job.step();
    const auto weights = job.all();
    const auto moments = job.all("m");
    job.second.weight.set_frozen(false);
    job.first.bias.set_frozen(true);
    job.model.recompile();
    CHECK(toy::same_bits(job.all(), weights));
    CHECK(toy::same_bits(job.model.whole(job.first.weight, "m"), moments.at("first.weight")));
    CHECK(toy::same_bits(job.model.whole(job.second.bias, "m"), moments.at("second.bias")));
    CHECK(toy::same_bits(job.model.whole(job.second.weight, "m"), Values(39, 0.0f)));
    CHECK(job.model.last_step().updates == 3);
    job.step();
    const auto after = job.all();
    CHECK_FALSE(toy::same_bits(after.at("second.weight"), weights.at("second.weight")));
    CHECK(toy::same_bits(after.at("first.bias"), weights.at("first.bias")));
  });
}

// Moments that begin at zero begin with their own count, as a new optimizer's: under the old one they would be taken
// for a mean over many steps, and steps would be several times the learning rate. Frozen again and thawed, they go on
// with it.
TEST_CASE("what_is_thawed_takes_the_steps_of_a_parameter_that_is_new") {
  on_every_strategy([](World& world, const FullyShardOptions& options) {
    constexpr float rate = 1e-3f;
    Parameter old({130}, Initial::ones()), thawed({70}, Initial::ones());
    thawed.set_frozen(true);
    FullyShard model(world, options);
    const NamedParameter parameters[] = {{"old", &old}, {"thawed", &thawed}};
    Unit& unit = model.add_unit("unit", parameters);
    model.finalize(AdamW{.learning_rate = rate, .weight_decay = 0.0f});
    const auto step = [&] {
      model.within(unit, WindowKind::forward, [](Window&) {});
      model.within(unit, WindowKind::backward, [&](Window& window) {
        for (Parameter* each : {&old, &thawed}) {
          if (!window.trains(*each)) continue;
          for (float& value : window.gradient(*each)) value = 1.0f;
        }
      });
      model.update();
    };
    Values moments(70, 0.0f);
    for (int round = 0; round < 2; ++round) {
      for (int i = 0; i < 40; ++i) step();
      const Values before = model.whole(old);
      thawed.set_frozen(false);
      model.recompile();
      CHECK(toy::same_bits(model.whole(thawed, "v"), moments));
      for (int i = 1; i <= 8; ++i) {
        const float was = model.whole(thawed)[69];
        step();
        CHECK((was - model.whole(thawed)[69]) / rate == doctest::Approx(1).epsilon(1e-3));
        if (i == 5) model.recompile();  // keeps the count
      }
      CHECK((before[129] - model.whole(old)[129]) / rate == doctest::Approx(8).epsilon(1e-3));
      moments = model.whole(thawed, "v");
      thawed.set_frozen(true);
      model.recompile();
    }
  });
}

TEST_CASE("recompiling_what_did_not_change_leaves_every_later_bit_alone") {
  on_every_strategy([](World& world, const FullyShardOptions& options) {
    Job straight(world, options), broken(world, options);
    straight.finalize();
    broken.finalize();
    for (int i = 0; i < 4; ++i) {
      straight.step();
      broken.step();
      if (i == 1) broken.model.recompile();
    }
    CHECK(toy::same_bits(straight.all(), broken.all()));
    CHECK(toy::same_bits(straight.all("v"), broken.all("v")));
  });
}

TEST_CASE("asking_for_a_frozen_parameters_gradient_is_an_error_that_names_it") {
  launch({.ranks = 1}, [](World& world) {
    Job job(world);
    job.first.bias.set_frozen(true);
    job.finalize();
    job.forward();
    job.model.backward(job.second, job.dy);
    auto window = job.model.open(*job.first_unit, WindowKind::backward);
    CHECK_FALSE(window.trains(job.first.bias));
    CHECK(window.trains(job.first.weight));
    CHECK_THROWS_WITH_AS(window.gradient(job.first.bias), doctest::Contains("first.bias is frozen"), UsageError);
    window.gradient(job.first.weight);
    window.close();
  });
}

// ---- untrained state ----

// Counts its samples, and adds up its inputs.
class Counting : public Module {
 public:
  void visit(ModuleVisitor& visitor) override {
    visitor("layer", layer);
    visitor("count", count);
    visitor("sums", sums);
  }
  const Values& forward(Window& window, const Values& x) {
    window.stream().submit([&x, counted = window.buffer(count), summed = window.buffer(sums)] {
      counted[0] += 2.0f;
      for (std::size_t i = 0; i < x.size(); ++i) summed[i % summed.size()] += x[i];
    });
    return layer.forward(window, x);
  }
  const Values& backward(Window& window, const Values& dy) { return layer.backward(window, dy); }

  Layer layer{5, 3, 2};
  Buffer count{{}};
  Buffer sums{{5}, Initial::ones()};
};

TEST_CASE("buffers_live_through_steps_and_become_rank_0s_when_synchronized") {
  on_every_strategy([](World& world, const FullyShardOptions& options) {
    Counting module;
    FullyShard model(world, options);
    model.add(module, {.name = "counting"});
    model.finalize(AdamW{});
    CHECK(module.sums.name() == "counting.sums");
    const Values x = toy::sample(10, 0, 0, world.rank(), 0);
    const Values dy(6, 0.5f);
    Values expected(5, 1.0f);
    for (int step = 0; step < 3; ++step) {
      model.forward(module, x);
      model.backward(module, dy);
      model.update();
      for (std::size_t i = 0; i < x.size(); ++i) expected[i % 5] += x[i];
    }
    const auto held = [&] {
      const auto values = model.buffer(module.sums);
      return Values(values.begin(), values.end());
    };
    CHECK(model.buffer(module.count)[0] == 6.0f);
    CHECK(toy::same_bits(held(), expected));
    model.recompile();
    CHECK(toy::same_bits(held(), expected));
    model.synchronize_buffers();
    Values of_rank_0(5, 1.0f);
    const Values x0 = toy::sample(10, 0, 0, 0, 0);
    for (int step = 0; step < 3; ++step) {
      for (std::size_t i = 0; i < x0.size(); ++i) of_rank_0[i % 5] += x0[i];
    }
    CHECK(toy::same_bits(held(), of_rank_0));
    Buffer stranger({2});
    CHECK_THROWS_WITH_AS(model.buffer(stranger), doctest::Contains("does not belong to this model"), UsageError);
  });
}

// ---- skipped units ----

TEST_CASE("a_skipped_unit_counts_as_a_gradient_of_zero_on_the_ranks_that_skip_it") {
  on_every_strategy([](World& world, const FullyShardOptions& options) {
    Job job(world, options, {.optional = true});
    job.finalize();
    const bool skips = world.rank() % 2 == 1;
    job.model.forward(job.first, job.x);
    if (skips) {
      job.model.skip(job.second, WindowKind::forward);
      job.model.skip(job.second, WindowKind::backward);
    } else {
      job.model.forward(job.second, job.first.y);
      job.model.backward(job.second, job.dy);
    }
    job.model.backward(job.first, skips ? Values(26, 0.0f) : job.second.dx);
    job.model.synchronize();
    job.model.update();
    double squares = 0.0;
    for (const float g : job.model.whole(job.second.bias, "gradient")) squares += double(g) * double(g);
    const auto norms = job.model.gradient_norms();
    CHECK(norms[3].parameter == &job.second.bias);
    CHECK(norms[3].norm == doctest::Approx(std::sqrt(squares)).epsilon(1e-6));
    CHECK(squares > 0.0);
  });
}

TEST_CASE("when_every_rank_skips_a_unit_it_is_only_decayed_by_nothing") {
  on_every_strategy([](World& world, const FullyShardOptions& options) {
    Job job(world, options, {.optional = true});
    job.finalize();
    job.model.forward(job.first, job.x);
    job.model.skip(job.second, WindowKind::forward);
    job.model.skip(job.second, WindowKind::backward);
    job.model.backward(job.first, Values(26, 0.1f));
    job.model.update();
    for (const float g : job.model.whole(job.second.weight, "gradient")) CHECK(g == 0.0f);
    for (const float m : job.model.whole(job.second.weight, "m")) CHECK(m == 0.0f);
  });
}

TEST_CASE("a_forgotten_gradient_is_found_also_when_the_units_last_window_is_skipped") {
  using enum WindowKind;
  FullyShardOptions options{.program = tests::program("f0 f0 b0 b0")};
  const auto run = [&](bool forgets) {
    launch({.ranks = 1}, [&](World& world) {
      Layer layer(5, 3, 2);
      FullyShard model(world, options);
      Unit& unit = model.add(layer, {.name = "layer", .optional = true});
      model.finalize(AdamW{});
      const Values x = toy::sample(10, 0, 0, 0, 0);
      model.forward(layer, x);
      model.skip(layer, forward);
      model.within(unit, backward, [&](Window& window) {
        if (!forgets) layer.backward(window, Values(6, 0.5f));
      });
      model.skip(layer, backward);
      model.update();
    });
  };
  CHECK_NOTHROW(run(false));
  CHECK_THROWS_WITH_AS(run(true), doctest::Contains("gradient of layer.weight was never asked for"), UsageError);
}

TEST_CASE("only_an_optional_unit_may_be_skipped") {
  launch({.ranks = 1}, [](World& world) {
    Job job(world);
    job.finalize();
    CHECK_THROWS_WITH_AS(job.model.skip(job.first, WindowKind::forward),
                         doctest::Contains("unit first cannot be skipped"), UsageError);
  });
}

// ---- hooks and norms ----

TEST_CASE("a_hook_sees_every_shard_once_a_step_and_what_it_writes_counts") {
  on_every_strategy([](World& world, const FullyShardOptions& options) {
    Job plain(world, options), hooked(world, options);
    std::map<std::string, std::size_t> seen;
    hooked.model.on_reduced_gradient([&](const ReducedGradient& gradient) {
      for (const ParameterPiece& piece : gradient.pieces) {
        seen[piece.parameter->name()] += piece.values.size();
        gradient.stream.submit([values = piece.values] {
          for (float& value : values) value *= 0.5f;
        });
      }
    });
    plain.finalize();
    hooked.finalize();
    plain.step();
    hooked.step();
    CHECK(hooked.model.last_step().gradient_norm == 0.5 * plain.model.last_step().gradient_norm);
    for (const auto& [name, gradient] : plain.all("gradient")) {
      Values half = gradient;
      for (float& value : half) value *= 0.5f;
      CHECK(toy::same_bits(half, hooked.all("gradient").at(name)));
    }
    for (const Layer* layer : {&hooked.first, &hooked.second}) {
      for (const Parameter* parameter : {&layer->weight, &layer->bias}) {
        CHECK(world.sum(double(seen[parameter->name()]), "seen") == double(parameter->elements()));
      }
    }
    CHECK_THROWS_WITH_AS(hooked.model.on_reduced_gradient({}), doctest::Contains("after finalize()"), UsageError);
  });
}

TEST_CASE("norms_of_the_parameters_add_up_to_the_global_one") {
  on_every_strategy([](World& world, const FullyShardOptions& options) {
    FullyShardOptions scaled = options;
    scaled.loss_scaling = kernels::LossScaling{.initial = 4};
    Job job(world, scaled);
    job.finalize();
    for (float& value : job.dy) value *= 4.0f;
    job.step();
    double squares = 0.0;
    for (const GradientNorm& entry : job.model.gradient_norms()) squares += entry.norm * entry.norm;
    CHECK(std::sqrt(squares) == doctest::Approx(job.model.last_step().gradient_norm).epsilon(1e-6));
  });
}

// ---- several forwards ----

TEST_CASE("several_forwards_may_come_before_a_backward") {
  on_every_strategy([](World& world, FullyShardOptions options) {
    using enum WindowKind;
    options.program = tests::program("f0 f1 f0 f1 b1 b0 b1 b0");
    const auto gradient_of = [&](int passes) {  // of the same sample, with its activations in between
      Job job(world, options);
      job.model.finalize(Sgd{.learning_rate = 0.1f});
      for (int pass = 0; pass < passes; ++pass) job.forward();
      for (int pass = 0; pass < passes; ++pass) job.backward();
      job.model.update();
      return job.model.whole(job.first.weight, "gradient");
    };
    const Values twice = gradient_of(2);
    options.program.reset();
    Values expected = gradient_of(1);
    for (float& value : expected) value *= 2.0f;
    CHECK(toy::same_bits(twice, expected));
  });
}

// ---- the block for activations ----

TEST_CASE("the_activation_block_is_the_arenas_and_keeps_its_address") {
  launch({.ranks = 2}, [](World& world) {
    Job job(world, {.activations = Bytes(12345)});
    job.finalize();
    const auto block = job.model.activation_memory();
    CHECK(block.size() == 12345);
    CHECK(reinterpret_cast<std::uintptr_t>(block.data()) % 4096 == 0);
    block.front() = block.back() = std::byte{7};
    job.step();
    CHECK(job.model.activation_memory().data() == block.data());
    CHECK(block.front() == std::byte{7});
    Job without(world);
    without.finalize();
    CHECK(without.model.activation_memory().empty());
  });
}

// ---- what checkpoints need ----

TEST_CASE("memory_of_checkpoints_is_the_arenas_and_as_large_as_asked_for") {
  launch({.ranks = 3}, [](World& world) {
    Job job(world, {.checkpointing = Checkpointing::background});
    job.finalize();
    const auto memory = job.model.checkpoint_memory();
    CHECK(memory.staging.size() == plan::checkpoint_staging(3).size().count());
    CHECK(memory.copy.size() == plan::checkpoint_copy(job.model.plan()).count());
    Job without(world);
    without.finalize();
    CHECK(without.model.checkpoint_memory().staging.empty());
    CHECK(without.model.checkpoint_memory().copy.empty());
  });
}

TEST_CASE("a_plan_that_is_held_is_not_recompiled_and_the_error_says_why") {
  launch({.ranks = 2}, [](World& world) {
    Job job(world);
    job.finalize();
    auto held = job.model.hold_plan("somebody reads its memory");
    static_cast<void>(*job.model.hold_plan("somebody else does, for a moment"));
    CHECK_THROWS_WITH_AS(job.model.recompile(), "recompile() was called while somebody reads its memory", UsageError);
    held.reset();
    job.model.recompile();
    job.step();
  });
}

// A new executor asks the optimizer once more, which then has nothing to give.
TEST_CASE("a_recompile_that_fails_half_way_says_that_the_values_are_gone") {
  class Exhausted final : public toy::IdleOptimizer {
   public:
    std::unique_ptr<UnitUpdate> prepare(std::span<const OptimizerRun>) const override {
      if (++calls_ == 2) throw MemoryError("no memory is left");
      return nullptr;
    }

   private:
    mutable int calls_ = 0;
  };
  launch({.ranks = 1}, [](World& world) {
    Layer layer(5, 3, 2);
    toy::Model model(world, {}, std::make_unique<Exhausted>(), layer);
    CHECK_THROWS_WITH_AS(model.recompile(), "no memory is left", MemoryError);
    const char* const gone = "recompile() failed half way";
    CHECK_THROWS_WITH_AS(model.last_step(), doctest::Contains(gone), UsageError);
    CHECK_THROWS_WITH_AS(model.recompile(), doctest::Contains(gone), UsageError);
    CHECK_THROWS_WITH_AS(model.finalize(AdamW{}), doctest::Contains(gone), UsageError);
  });
}

TEST_CASE("step_scalars_are_read_and_replaced_between_steps") {
  launch({.ranks = 2}, [](World& world) {
    Job job(world);
    job.finalize();
    job.step();
    auto scalars = job.model.step_scalars();
    CHECK(scalars.step == 1);
    scalars.step = 41;
    job.model.set_step_scalars(scalars);
    job.step();
    CHECK(job.model.last_step().updates == 42);
  });
}

TEST_CASE("ranks_that_set_other_counts_than_those_that_they_take_steps_with_are_told_on_every_rank") {
  const auto refusal_of = [](bool begun, std::size_t replicas, const std::vector<std::int64_t>& counts) {
    std::atomic<int> told = 0;
    std::string text;
    const int ranks = static_cast<int>(counts.size());
    launch({.ranks = ranks, .timeout = std::chrono::seconds(20)}, [&](World& world) {
      FullyShardOptions options{.replicas = replicas};
      if (replicas > 1) options.outer.every = 4;
      Job job(world, options);
      job.finalize();
      const std::int64_t mine = counts[static_cast<std::size_t>(world.rank())];
      try {
        auto scalars = job.model.step_scalars();
        scalars.step = mine;
        auto counts_begun = job.model.states_begun();
        for (std::int64_t& count : counts_begun.front()) count = mine;
        if (!begun) job.model.set_step_scalars(scalars);
        if (begun) job.model.set_states_begun(counts_begun);
      } catch (const CommunicationError& error) {
        if (++told == 1) text = error.what();
      }
      world.barrier("told");
    });
    CHECK((told == 0 || told == ranks));
    return text;
  };
  for (const bool begun : {false, true}) {
    const std::string call = begun ? "set_states_begun()" : "set_step_scalars() of program train";
    CHECK(refusal_of(begun, 1, {7, 7, 7}) == "");
    const std::string of_three = refusal_of(begun, 1, {7, 8, 7});
    CHECK_MESSAGE(of_three.starts_with(call + ": what it is given, by its hash, must be equal: ranks 0, 2 said"),
                  of_three);
    CHECK(of_three.find("; rank 1 said") != std::string::npos);
    CHECK(refusal_of(begun, 2, {7, 7, 8, 8}) == "");  // replicas that train apart
    const std::string of_one = refusal_of(begun, 2, {7, 7, 8, 7});
    CHECK_MESSAGE(of_one.find("must be equal: rank 2 said") != std::string::npos, of_one);
    CHECK(of_one.find("; rank 3 said") != std::string::npos);
  }
}

// All of these are of one size.
TEST_CASE("ranks_that_ask_for_the_values_of_different_states_are_told") {
  CHECK_THROWS_WITH_AS(launch({.ranks = 2},
                              [](World& world) {
                                Job job(world);
                                job.finalize();
                                job.model.whole(job.first.weight, world.rank() == 1 ? "m" : "master");
                              }),
                       doctest::Contains("\"whole(first.weight), m\""), CommunicationError);
}

std::ptrdiff_t threads() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/task"), std::filesystem::directory_iterator());
}

// The streams' threads, after a step of two layers.
std::ptrdiff_t threads_of_a_model(std::size_t width, const Diagnostics& diagnostics = {}) {
  std::ptrdiff_t more = 0;
  launch({.ranks = 1}, [&](World& world) {
    const std::ptrdiff_t before = threads();
    Layer first(5, width, 2), second(width, 3, 2);
    toy::Model model(world, {.diagnostics = diagnostics}, AdamW{}, first, second);
    const Values x(10, 0.5f), dy(6, 0.25f);  // layers look at them until their backward pass
    model.forward(second, model.forward(first, x));
    model.backward(first, model.backward(second, dy));
    model.update();
    model.synchronize();
    more = threads() - before;
  });
  return more;
}

TEST_CASE("a_rank_alone_has_threads_for_large_units_only") {
  CHECK(threads_of_a_model(13) == 0);
  CHECK(threads_of_a_model(100'003) == 2);
  CHECK(threads_of_a_model(13, {.delay_seed = 7}) == 2);
}

}  // namespace features_test
