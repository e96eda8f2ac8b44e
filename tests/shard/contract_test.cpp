// The window contract: what is allowed works, and everything else is an error that names rank, unit and what was
// expected, on every rank and before the deadline.
#include <doctest/doctest.h>

#include <chrono>
#include <cmath>
#include <fstream>
#include <functional>
#include <limits>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "../checkpoint/temporary_folder.hpp"
#include "../error_text.hpp"
#include "tessera/base/error.hpp"
#include "tessera/optim/sgd.hpp"
#include "tessera/shard/trace.hpp"
#include "toy_model.hpp"

namespace contract_test {

using namespace tessera;
using plan::WindowKind;
using Layer = toy::Layer<float>;

// Ready to train.
struct Fixture : toy::TwoLayers {
  explicit Fixture(World& world, const FullyShardOptions& options = {}) : TwoLayers(world, options) {
    model.finalize(AdamW{});
  }
  Window open(const Layer& layer, WindowKind kind = WindowKind::forward) {
    return model.open(&layer == &first ? *first_unit : *second_unit, kind);
  }
};

// Returns what launch() reports when every rank runs `body` on a fixture of its own.
std::string error_of(int ranks, const std::function<void(Fixture&, World&)>& body,
                     const FullyShardOptions& options = {}) {
  const auto on_each = [&](World& world) {
    Fixture fixture(world, options);
    body(fixture, world);
  };
  return toy::failure_of(ranks, on_each, std::chrono::seconds(5));
}

#define CHECK_NAMES(text, part)    \
  do {                             \
    const std::string t = text;    \
    INFO(t);                       \
    CHECK(toy::contains(t, part)); \
  } while (false)

// On so many ranks, `call` ends the job with an error that says `part`.
void check_refused(int ranks, const std::string& part, const std::function<void(Fixture&)>& call) {
  CHECK_NAMES(error_of(ranks, [&](Fixture& f, World&) { call(f); }), part);
}

TEST_CASE("a_window_out_of_order_names_what_was_expected") {
  check_refused(
      2, "the forward window of unit second was opened out of order: the forward window of unit first was expected",
      [](Fixture& f) { f.model.forward(f.second, f.x); });
  check_refused(1, "the backward window of unit second was expected",
                [](Fixture& f) { f.forward(), f.model.backward(f.first, f.dy); });
  check_refused(1, "update() was expected", [](Fixture& f) { f.forward(), f.backward(), f.forward(); });
  check_refused(1, "update() came inside a pass", [](Fixture& f) { f.forward(), f.model.update(); });
  check_refused(1, "update() came after 0 of 1 micro-batches", [](Fixture& f) { f.model.update(); });
}

TEST_CASE("what_works_between_steps_names_the_call_that_came_inside_one") {
  const auto check_inside = [](const std::string& name, const std::function<void(Fixture&)>& call) {
    check_refused(1, name + " works between steps only: finish this one with its windows and update() first",
                  [&](Fixture& f) { f.model.forward(f.first, f.x), call(f); });
  };
  check_inside("whole()", [](Fixture& f) { f.model.whole(f.first.weight); });
  check_inside("pieces()", [](Fixture& f) { f.model.pieces(*f.first_unit); });
  check_inside("gradient_norms()", [](Fixture& f) { f.model.gradient_norms(); });
  check_inside("recompile()", [](Fixture& f) { f.model.recompile(); });
  check_inside("mine()", [](Fixture& f) { f.model.require_between_steps("mine()"); });
}

// A unit that was asked for by its number opens windows like the one that add() returned.
TEST_CASE("windows_open_on_units_by_number") {
  launch({.ranks = 1}, [](World& world) {
    Fixture f(world);
    std::size_t seen = 0;
    for (std::size_t u = 0; u < f.model.unit_count(); ++u) {
      f.model.within(f.model.unit(u), WindowKind::forward, [&](Window&) { ++seen; });
    }
    CHECK(seen == 2);
  });
}

TEST_CASE("evaluation_inside_a_step_is_refused") {
  const auto after_a_pass = [](Fixture& f, World&) { f.forward(), f.backward(), f.model.evaluate(f.first, f.x); };
  CHECK_NAMES(error_of(1, after_a_pass, {.micro_batches = 2}), "evaluate before the first or after update()");
  check_refused(1, "the forward window of unit second was expected",
                [](Fixture& f) { f.model.forward(f.first, f.x), f.model.evaluate(f.first, f.x); });
}

TEST_CASE("a_second_window_while_one_is_open_is_refused") {
  check_refused(1, "the forward window of unit first is still open", [](Fixture& f) {
    const Window window = f.open(f.first);
    f.open(f.second);
  });
}

TEST_CASE("a_parameter_outside_its_window_is_refused") {
  check_refused(2, "the forward window of unit first was used after it had closed", [](Fixture& f) {
    Window window = f.open(f.first);
    window.close();
    window.parameter(f.first.weight);
  });
  check_refused(2, "unit first: parameter second.weight belongs to unit second",
                [](Fixture& f) { f.open(f.first).parameter(f.second.weight); });
  check_refused(1, "never added to a model", [](Fixture& f) {
    Parameter stranger({3}, Initial::zeros());
    f.open(f.first).parameter(stranger);
  });
}

TEST_CASE("the_wrong_type_and_gradients_in_a_forward_window_are_refused") {
  check_refused(1, "parameter first.weight is fp32 here, not bf16",
                [](Fixture& f) { f.open(f.first).parameter<bf16>(f.first.weight); });
  check_refused(1, "gradient of first.weight asked for outside a backward window",
                [](Fixture& f) { f.open(f.first).gradient(f.first.weight); });
}

TEST_CASE("a_forgotten_gradient_is_an_error_that_names_it") {
  check_refused(3, "backward window of unit second: the gradient of second.bias was never asked for", [](Fixture& f) {
    f.forward();
    Window window = f.open(f.second, WindowKind::backward);
    window.gradient(f.second.weight);
    window.close();
  });
}

TEST_CASE("an_exception_in_a_window_reaches_every_rank_with_unit_and_cause") {
  for (const int failing : {0, 2}) {
    std::vector<std::string> seen(4);
    const auto start = std::chrono::steady_clock::now();
    const std::string first_cause = error_of(4, [&](Fixture& f, World& world) {
      try {
        for (int step = 0; step < 3; ++step) {
          f.forward();
          if (step == 1 && world.rank() == failing) {
            f.model.within(*f.second_unit, WindowKind::backward,
                           [](Window&) { throw std::runtime_error("the layer broke"); });
          }
          f.backward();
          f.model.update();
          f.model.synchronize();
        }
      } catch (const std::exception& error) {
        seen[std::size_t(world.rank())] = error.what();
        throw;
      }
    });
    CHECK_NAMES(first_cause, "the layer broke");
    CHECK_NAMES(first_cause, "rank " + std::to_string(failing));
    for (int rank = 0; rank < 4; ++rank) {
      CAPTURE(rank);
      CHECK_NAMES(seen[std::size_t(rank)], "the layer broke");
      if (rank == failing) continue;
      CHECK_NAMES(seen[std::size_t(rank)], "backward window of unit second");
      CHECK_NAMES(seen[std::size_t(rank)], "rank " + std::to_string(failing));
    }
    CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(4));
  }
}

TEST_CASE("a_window_left_open_by_an_exception_aborts_the_world") {
  const std::string cause = error_of(3, [](Fixture& f, World& world) {
    auto window = f.open(f.first);
    if (world.rank() == 1) throw std::runtime_error("no data left");
    window.close();
    f.model.forward(f.second, f.first.y);
    f.model.synchronize();
    world.barrier("end");
  });
  CHECK_NAMES(cause, "rank 1");
}

// Its update of the second unit throws, once.
class Stumbling final : public toy::IdleOptimizer {
 public:
  void update(Stream&, const OptimizerSpans&, const OptimizerGroup&, const kernels::StepScalars*) const override {
    if (++calls_ == 2) throw std::runtime_error("the optimizer stumbled");
  }

 private:
  mutable int calls_ = 0;
};

// The rest of such a segment can neither go on nor begin again, where the first unit would be updated twice.
TEST_CASE("what_throws_while_a_step_is_launched_ends_the_job_also_where_it_is_caught") {
  const std::string in_update = toy::failure_of(1, [&](World& world) {
    toy::TwoLayers layers(world);
    layers.model.finalize(std::make_unique<Stumbling>());
    CHECK_THROWS_WITH(layers.step(), "the optimizer stumbled");
    layers.model.update();
  });
  CHECK_NAMES(in_update, "optimize second");
  CHECK_NAMES(in_update, "the optimizer stumbled");
  const std::string in_hook = toy::failure_of(1, [&](World& world) {
    const toy::Values x(8, 0.5f), dy(10, 0.5f);
    Layer layer(4, 5, 2);
    FullyShard model(world);
    Unit& unit = model.add(layer, "layer");
    model.on_reduced_gradient([](const ReducedGradient&) { throw std::runtime_error("the hook broke"); });
    model.finalize(AdamW{});
    model.forward(layer, x);
    Window window = model.open(unit, WindowKind::backward);
    layer.backward(window, dy);
    CHECK_THROWS_WITH(window.close(), "the hook broke");
    model.update();
  });
  CHECK_NAMES(in_hook, "hook layer");
  CHECK_NAMES(in_hook, "the hook broke");
}

// Also where its host does not look, and would only meet the others.
TEST_CASE("a_task_that_fails_on_a_stream_ends_the_job_for_all_with_its_cause") {
  for (const bool queue : {false, true}) {
    const std::string cause =
        error_of(3,
                 [](Fixture& f, World& world) {
                   f.forward();
                   if (world.rank() == 1)
                     f.model.stream().submit([] { throw std::runtime_error("the table is empty"); });
                   try {
                     f.model.stream().synchronize();
                   } catch (const std::exception&) {
                     // Not looked at.
                   }
                   world.barrier("after");
                 },
                 {.diagnostics = {.queue_compute = queue}});
    CHECK_NAMES(cause, "rank 1");
    CHECK_NAMES(cause, "the table is empty");
  }
}

TEST_CASE("parameters_and_gradients_keep_their_addresses") {
  launch({.ranks = 3}, [](World& world) {
    for (const std::size_t prefetch : {0, 1, 2}) {
      Fixture f(world, {.prefetch = prefetch});
      std::set<const float*> weights, gradients;
      for (int step = 0; step < 3; ++step) {
        f.model.within(*f.first_unit, WindowKind::forward,
                       [&](Window& window) { weights.insert(window.parameter(f.first.weight).data()); });
        f.model.within(*f.second_unit, WindowKind::forward, [](Window&) {});
        f.model.within(*f.second_unit, WindowKind::backward,
                       [&](Window& window) { window.gradient(f.second.bias), window.gradient(f.second.weight); });
        f.model.within(*f.first_unit, WindowKind::backward, [&](Window& window) {
          window.gradient(f.first.bias);
          weights.insert(window.parameter(f.first.weight).data());
          gradients.insert(window.gradient(f.first.weight).data());
        });
        f.model.update();
      }
      CHECK(weights.size() == 1);
      CHECK(gradients.size() == 1);
    }
  });
}

TEST_CASE("freed_slots_are_poisoned") {
  launch({.ranks = 2}, [](World& world) {
    for (const bool poison : {true, false}) {
      Fixture f(world, {.diagnostics = {.poison = poison}});
      const float* weight = nullptr;
      const float* gradient = nullptr;
      f.forward();
      f.model.backward(f.second, f.dy);
      f.model.within(*f.first_unit, WindowKind::backward, [&](Window& window) {
        weight = window.parameter(f.first.weight).data();
        gradient = window.gradient(f.first.weight).data();
        f.first.backward(window, f.second.dx);
      });
      f.model.update();
      f.model.synchronize();
      CHECK(std::isnan(*weight) == poison);
      CHECK(std::isnan(*gradient) == poison);
    }
  });
}

TEST_CASE("accumulate_starts_from_zero_and_adds_within_the_window") {
  launch({.ranks = 2}, [](World& world) {
    Fixture f(world, {.diagnostics = {.poison = true}});
    f.forward();
    f.model.within(*f.second_unit, WindowKind::backward, [&](Window& window) {
      for (int pass = 0; pass < 2; ++pass) {
        for (float& value : window.gradient(f.second.weight, GradientMode::accumulate)) value += 1.5f;
        for (float& value : window.gradient(f.second.bias, GradientMode::accumulate)) value += 1.0f;
      }
    });
    f.model.within(*f.first_unit, WindowKind::backward, [&](Window& window) {
      for (float& value : window.gradient(f.first.weight)) value = 0.0f;
      for (float& value : window.gradient(f.first.bias)) value = 0.0f;
    });
    f.model.update();
    const double expected = std::sqrt(13 * 3 * 9.0 + 3 * 4.0);  // averaged over equal ranks
    CHECK(f.model.last_step().gradient_norm == doctest::Approx(expected).epsilon(1e-12));
  });
}

TEST_CASE("an_optional_parameter_without_a_gradient_counts_as_zero") {
  launch({.ranks = 3}, [](World& world) {
    Parameter used({7}, Initial::ones());
    Parameter unused({129}, Initial::ones(), {.optional = true});
    FullyShardOptions options{.diagnostics = {.poison = true}};
    FullyShard model(world, options);
    const NamedParameter parameters[] = {{"used", &used}, {"unused", &unused}};
    Unit& unit = model.add_unit("unit", parameters);
    model.finalize(AdamW{.learning_rate = 0.1f, .weight_decay = 0.0f});
    model.within(unit, WindowKind::forward, [](Window&) {});
    model.within(unit, WindowKind::backward, [&](Window& w) {
      for (float& value : w.gradient(used)) value = 2.0f;
    });
    model.update();
    CHECK(model.last_step().gradient_norm == doctest::Approx(std::sqrt(28.0)));
    model.within(unit, WindowKind::forward, [&](Window& w) {
      for (const float value : w.parameter(unused)) CHECK(value == 1.0f);
      for (const float value : w.parameter(used)) CHECK(value == doctest::Approx(0.9f));
    });
  });
}

TEST_CASE("work_on_a_joined_stream_belongs_to_the_window") {
  launch({.ranks = 2}, [](World& world) {
    Fixture f(world, {.prefetch = 0, .diagnostics = {.poison = true}});
    Stream side(world.device(), {.name = "side", .delay_seed = 7});
    for (int step = 0; step < 3; ++step) {
      float sum = 0.0f;
      f.model.within(*f.first_unit, WindowKind::forward, [&](Window& window) {
        f.first.forward(window, f.x);
        window.join(side);
        side.submit([&sum, w = window.parameter(f.first.weight)] {
          for (const float value : w) sum += value;
        });
      });
      f.model.forward(f.second, f.first.y);  // another unit takes the slot
      side.synchronize();
      CHECK(std::isfinite(sum));
      f.backward();
      f.model.update();
    }
  });
}

TEST_CASE("a_task_that_fails_on_a_joined_stream_ends_the_job_for_all_with_its_cause") {
  const std::string error = error_of(3, [](Fixture& f, World& world) {
    Stream side(world.device(), {.name = "side"});
    for (int step = 0; step < 3; ++step) {
      f.forward();
      f.model.backward(f.second, f.dy);
      f.model.within(*f.first_unit, WindowKind::backward, [&](Window& window) {
        f.first.backward(window, f.second.dx);
        window.join(side);
        side.submit([fails = step == 1 && world.rank() == 2] {
          if (fails) throw std::runtime_error("out of scratch memory");
        });
      });
      f.model.update();
    }
    f.model.synchronize();
  });
  CHECK_NAMES(error, "out of scratch memory");
}

TEST_CASE("a_joined_stream_that_ends_before_the_window_is_an_error_that_names_both") {
  const std::string error = error_of(1, [](Fixture& f, World& world) {
    f.model.within(*f.first_unit, WindowKind::forward, [&](Window& window) {
      Stream side(world.device(), {.name = "side"});
      Stream moved = std::move(side);
      window.join(moved);
    });
  });
  CHECK_NAMES(error, "forward window of unit first: stream side, which joined this window, has ended");
}

// Joined streams wait for what the runtime itself enqueues in a window, too.
TEST_CASE("a_joined_stream_adds_to_gradients_that_are_zero_by_then") {
  launch({.ranks = 1}, [](World& world) {
    FullyShardOptions options{.diagnostics = {.delay_seed = 3, .poison = true, .queue_compute = true}};
    Parameter weight({4096}, Initial::zeros());
    FullyShard model(world, options);
    const NamedParameter parameters[] = {{"weight", &weight}};
    Unit& unit = model.add_unit("unit", parameters);
    model.finalize(Sgd{});
    Stream side(world.device(), {.name = "side"});
    for (int step = 0; step < 5; ++step) {
      model.within(unit, WindowKind::forward, [](Window&) {});
      model.within(unit, WindowKind::backward, [&](Window& window) {
        window.join(side);
        window.stream().submit(
            [] { std::this_thread::sleep_for(std::chrono::milliseconds(10)); });  // zeroing comes late
        side.submit([gradient = window.gradient(weight, GradientMode::accumulate)] {
          for (float& value : gradient) value += 1.0f;
        });
      });
      model.update();
      CHECK(model.whole(weight, "gradient") == toy::Values(4096, 1.0f));
    }
  });
}

TEST_CASE("a_gradient_that_is_not_finite_changes_nothing_on_any_rank") {
  for (const auto strategy : flat_strategies) {
    launch({.ranks = 3}, [&](World& world) {
      Fixture f(world, {.strategy = strategy});
      const toy::Values before = toy::share(f.model, *f.first_unit);
      f.forward();
      if (world.rank() == 1) f.dy[0] = std::numeric_limits<float>::infinity();
      f.backward();
      f.model.update();
      CHECK(f.model.last_step().skipped);
      CHECK(f.model.last_step().updates == 0);
      CHECK(f.model.last_step().skipped_updates == 1);
      CHECK(toy::same_bits(before, toy::share(f.model, *f.first_unit)));
      f.dy[0] = 0.25f;
      f.step();
      CHECK_FALSE(f.model.last_step().skipped);
      CHECK(f.model.last_step().updates == 1);
    });
  }
}

TEST_CASE("ranks_that_update_at_different_rates_are_told") {
  for (const auto strategy : flat_strategies) {
    std::vector<char> reached(3, 0);
    const std::string cause = error_of(3,
                                       [&](Fixture& f, World& world) {
                                         f.forward();
                                         f.backward();
                                         f.model.update(world.rank() == 2 ? 0.02f : 0.01f);
                                         f.model.synchronize();
                                         reached[std::size_t(world.rank())] = 1;
                                       },
                                       {.strategy = strategy});
    CAPTURE(to_string(strategy));
    CHECK_NAMES(cause, "the ranks disagree");
    CHECK_NAMES(cause, "norms, in update(0.01)");
    CHECK_NAMES(cause, "norms, in update(0.02)");
    CHECK_NAMES(cause, "rank 2");
    CHECK(reached == std::vector<char>(3, 0));
  }
}

TEST_CASE("a_learning_rate_that_is_no_rate_is_refused") {
  for (const float rate : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(), -1e-3f}) {
    CHECK_NAMES(error_of(1, [&](Fixture& f, auto&) { f.forward(), f.backward(), f.model.update(rate); }),
                "a learning rate is finite and at least 0");
  }
}

TEST_CASE("many_skipped_steps_in_a_row_are_a_warning") {
  const TemporaryFolder folder;
  launch({.ranks = 2, .log_dir = folder.path()}, [](World& world) {
    Fixture f(world);
    const auto steps = [&](int count, float gradient) {
      f.dy[0] = gradient;
      for (int step = 0; step < count; ++step) f.step();
    };
    const float infinite = std::numeric_limits<float>::infinity();
    steps(31, infinite);
    steps(1, 0.25f);
    steps(70, infinite);  // warns at 32 and at 64
    f.model.synchronize();
  });
  const auto warnings = [&](const char* log) {
    std::ifstream file(folder.path() / log);
    std::vector<std::string> lines;
    for (std::string line; std::getline(file, line);) {
      if (toy::contains(line, "updates in a row were skipped")) lines.push_back(line);
    }
    return lines;
  };
  REQUIRE(warnings("rank-0.log").size() == 2);
  CHECK_NAMES(warnings("rank-0.log")[0], "32 updates in a row were skipped");
  CHECK_NAMES(warnings("rank-0.log")[0], "no weight has changed since update 1");
  CHECK(warnings("rank-1.log").empty());
}

TEST_CASE("ranks_with_different_models_or_settings_are_told_at_finalize") {
  struct Said {
    FullyShardOptions options;
    std::size_t width = 5;
    AdamW adamw;
    bool frozen = false;
    bool more = false;
    float initial = 0.0f;
  };
  const auto cause = [](const std::function<void(Said&, int)>& change) {
    return tests::error_text<CommunicationError>([&] {
      launch({.ranks = 3, .timeout = std::chrono::seconds(5)}, [&](World& world) {
        Said said;
        change(said, world.rank());
        Layer layer(4, said.width, 2), other(4, 4, 2);
        layer.bias.set_frozen(said.frozen);
        Parameter weight({3}, Initial::normal(0.0f, said.initial));
        FullyShard model(world, said.options);
        model.add(layer, "layer");
        const NamedParameter parameters[] = {{"weight", &weight}};
        model.add_unit("own", parameters);
        if (said.more) model.add(other, "other");
        model.finalize(said.adamw);
      });
    });
  };
  CHECK_NAMES(
      cause([](Said& said, int rank) { said.width += rank == 1 ? 1 : 0; }),
      "ranks 0, 2 with parameter layer.weight of shape [5, 4] in unit layer; rank 1 with parameter layer.weight of "
      "shape [6, 4] in unit layer");
  CHECK_NAMES(cause([](Said& said, int rank) { said.options.prefetch = rank == 2 ? 0 : 1; }),
              "ranks 0, 1 with prefetch = 1; rank 2 with prefetch = 0");
  CHECK_NAMES(cause([](Said& said, int rank) { said.options.seed = rank == 2 ? 1 : 0; }),
              "ranks 0, 1 with seed = 0; rank 2 with seed = 1");
  CHECK_NAMES(cause([](Said& said, int rank) { said.adamw.epsilon = rank == 0 ? 1e-6f : 1e-8f; }),
              "rank 0 with epsilon = 1e-06; ranks 1, 2 with epsilon = 1e-08");
  CHECK_NAMES(cause([](Said& said, int rank) { said.adamw.weight_decay = rank == 0 ? 0.5f : 0.25f; }),
              "rank 0 with weight_decay = 0.5; ranks 1, 2 with weight_decay = 0.25");
  CHECK_NAMES(cause([](Said& said, int rank) { said.frozen = rank == 1; }),
              "rank 1 with parameter layer.bias of shape [5], frozen in unit layer");
  // Where the difference comes behind much that is alike.
  CHECK_NAMES(cause([](Said& said, int rank) {
                ParameterGroup group{.patterns = {}, .learning_rate_scale = rank == 1 ? 2.0f : 1.0f};
                for (int block = 0; block < 40; ++block)
                  group.patterns.push_back("blocks." + std::to_string(block) + ".*");
                said.adamw.groups = {group};
              }),
              "\"blocks.39.*\", learning_rate_scale 1, weight_decay inherited, beta1 inherited, beta2 inherited, "
              "epsilon inherited; rank 1 with groups[0]");
  CHECK_NAMES(cause([](Said& said, int rank) { said.more = rank == 1; }),
              "ranks 0, 2 with units = 2; rank 1 with units = 3");
  CHECK_NAMES(cause([](Said& said, int rank) { said.initial = rank == 1 ? 0.5f : 0.0f; }),
              "rank 1 with initial values of own.weight = normal, 0 and 0.5");
  CHECK(cause([](Said&, int) {}).empty());
  CHECK_NAMES(error_of(2,
                       [](Fixture& f, World& world) {
                         f.first.bias.set_frozen(world.rank() == 1);
                         f.model.recompile();
                       }),
              "recompile(): options, units and the optimizer's settings must be the same on every rank");
}

TEST_CASE("a_program_that_only_evaluates_refuses_what_trains") {
  launch({.ranks = 1}, [](World& world) {
    Layer layer(4, 5, 2);
    layer.weight.set_frozen(true);
    layer.bias.set_frozen(true);
    FullyShard model(world, {.program = plan::Program{{}, {{0, WindowKind::evaluate}}}});
    Unit& unit = model.add(layer, "layer");
    model.finalize(AdamW{});
    model.within(unit, WindowKind::evaluate, [](Window&) {});
    const auto refuses = [](const auto& call) {
      CHECK_THROWS_WITH_AS(call(), doctest::Contains("the program has evaluation windows alone, and trains nothing"),
                           UsageError);
    };
    refuses([&] { model.within(unit, WindowKind::forward, [](Window&) {}); });
    refuses([&] { model.update(); });
    refuses([&] { model.skip_step(); });
    refuses([&] { model.discard_gradients(); });
    refuses([&] { model.trace({}); });
  });
}

TEST_CASE("ranks_that_evaluate_a_different_number_of_times_are_told") {
  const std::string error = error_of(2, [](Fixture& f, World& world) {
    for (int i = 0; i <= world.rank(); ++i) {
      for (Unit* unit : {f.first_unit, f.second_unit}) {
        f.model.within(*unit, WindowKind::evaluate, [](Window&) {});
      }
    }
    f.forward();
    f.model.synchronize();
  });
  CHECK_NAMES(error, "\"first, evaluated\"");
  CHECK_NAMES(error, "\"first\"");
}

TEST_CASE("calls_out_of_place_are_refused") {
  launch({.ranks = 1}, [](World& world) {
    Layer layer(4, 5, 2), other(5, 3, 2);
    FullyShard empty(world);
    CHECK_THROWS_WITH_AS(empty.finalize(AdamW{}), doctest::Contains("no units"), UsageError);
    FullyShard model(world);
    CHECK_THROWS_WITH_AS(model.update(), doctest::Contains("not finalized"), UsageError);
    model.add(layer, "layer");
    CHECK_THROWS_WITH_AS(model.add(layer, "again"), doctest::Contains("already added as layer"), UsageError);
    CHECK_THROWS_WITH_AS(model.forward(other, toy::Values()), doctest::Contains("not added"), UsageError);
    model.finalize(AdamW{});
    CHECK_THROWS_WITH_AS(model.finalize(AdamW{}), doctest::Contains("twice"), UsageError);
    CHECK_THROWS_WITH_AS(model.add(other, "late"), doctest::Contains("after finalize"), UsageError);
    CHECK_THROWS_WITH_AS(model.pieces(model.unit(0), "velocity"), doctest::Contains("there are master, gradient, m, v"),
                         UsageError);
  });
}

TEST_CASE("what_finalize_refuses_of_names_is_named") {
  const auto cause = [](const std::string& name, std::vector<std::string> patterns, bool own = false) {
    std::string text;
    launch({.ranks = 1}, [&](World& world) {
      Parameter weight({3}, Initial::ones());
      Layer layer(4, 5, 2);
      FullyShard model(world);
      const NamedParameter parameters[] = {{name, &weight}};
      const AdamW adamw{.groups = {{.patterns = std::move(patterns), .weight_decay = 0.0f}}};
      try {
        UnitOptions options{.name = "own"};
        if (own) options.optimizer = adamw;
        model.add_unit(options, parameters);
        model.add(layer, "layer");
        own ? model.finalize(AdamW{}) : model.finalize(adamw);
      } catch (const UsageError& error) {
        text = error.what();
      }
    });
    return text;
  };
  CHECK(cause("weight", {"*.weight", "*.absent"}) == "");
  CHECK(cause("weight", {"[lo]*.weight"}) == "");
  CHECK(cause("weight", {"layer.*"}) == "");
  CHECK(cause("weight", {"*.weigth", "x"}) ==
        "groups[0] of optimizer adamw matches no parameter that it updates: \"*.weigth\" \"x\"; the first is "
        "own.weight");
  CHECK_NAMES(cause("weight", {"layer.*"}, true), "matches no parameter that it updates: \"layer.*\"");
  CHECK(cause("wéight", {"*"}) == "");
  for (const char* name : {"\xff", "\xc3", "\xed\xa0\x80", "\xc0\xaf", "\xf4\x90\x80\x80"}) {
    CHECK(cause(name, {"*"}) == "unit 0 of the model has a tensor of [3] whose name is not UTF-8, as files have names");
  }
}

// pieces(), and with it checkpoints, would show something else by it.
TEST_CASE("states_of_an_optimizer_have_names_that_nothing_else_has") {
  class Named final : public toy::IdleOptimizer {
   public:
    explicit Named(std::vector<std::string> states) : states_(std::move(states)) {}
    std::vector<std::string> states() const override { return states_; }

   private:
    std::vector<std::string> states_;
  };
  const auto refusal = [](const std::vector<std::string>& states, bool of_unit) {
    return toy::failure_of(1, [&](World& world) {
      Layer layer(4, 5, 2);
      FullyShard model(world);
      UnitOptions options{.name = "layer"};
      if (of_unit) options.optimizer = std::make_shared<Named>(states);
      model.add(layer, options);
      model.finalize(of_unit ? std::unique_ptr<Optimizer>(AdamW{}) : std::make_unique<Named>(states));
    });
  };
  for (const bool of_unit : {false, true}) {
    CHECK(refusal({"momentum", "momentum of another kind"}, of_unit) == "");
    for (const char* taken : {"master", "gradient", "anchor", "outer momentum", ""}) {
      CHECK_NAMES(refusal({taken}, of_unit), "a state of an optimizer has the name \"" + std::string(taken) + "\"");
    }
    CHECK_NAMES(refusal({"m", "v", "m"}, of_unit), "two states of an optimizer have the name \"m\"");
  }
}

TEST_CASE("a_plan_over_the_limit_is_refused_with_a_setting_that_fits") {
  const auto cause = [](Bytes limit, Strategy strategy, bool of_units = false) {
    return tests::error_text<MemoryError>([&] {
      launch({.ranks = 4}, [&](World& world) {
        std::vector<std::unique_ptr<Layer>> layers;
        FullyShardOptions options{.strategy = strategy, .reshard_after_forward = of_units, .memory_limit = limit};
        FullyShard model(world, options);
        for (int l = 0; l < 6; ++l) {
          UnitOptions unit;
          if (of_units) unit.reshard_after_forward = false;
          model.add(*layers.emplace_back(std::make_unique<Layer>(64, 64, 1)), unit);
        }
        model.finalize(AdamW{});
      });
    });
  };
  CHECK(cause(Bytes(1 << 24), Strategy::ddp).empty());
  CHECK_NAMES(cause(Bytes(250'000), Strategy::ddp), "strategy = zero2");
  CHECK_NAMES(cause(Bytes(200'000), Strategy::fsdp), "it fits");
  CHECK_NAMES(cause(Bytes(10'000), Strategy::fsdp), "no setting fits on 4 ranks");
  CHECK_NAMES(cause(Bytes(200'000), Strategy::fsdp, true),
              "with reshard_after_forward = true, also of units that have their own, as units.0");
}

// For six times the timeout, which is longer than a rank's own streams wait for each other. It is a second, because a
// loaded machine lets a thread wait for as long as a fifth of it.
TEST_CASE("a rank that makes progress is waited for by its peers' streams, too") {
  launch({.ranks = 2, .timeout = std::chrono::seconds(1)}, [](World& world) {
    Fixture fixture(world);
    const auto start = std::chrono::steady_clock::now();
    while (world.rank() == 1 && std::chrono::steady_clock::now() - start < 6 * world.timeout()) {
      world.note_progress();
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    fixture.step();
    fixture.model.synchronize();
  });
}

}  // namespace contract_test
