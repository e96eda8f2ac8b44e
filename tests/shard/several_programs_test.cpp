// Models of several programs: a generator and a discriminator with optimizers of their own, whose steps alternate as
// the user likes. Against a plain loop in double precision, and bit for bit between strategies.
#include <doctest/doctest.h>

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "../extent.hpp"
#include "../windows.hpp"
#include "plain_layer.hpp"
#include "tessera/base/error.hpp"
#include "tessera/optim/sgd.hpp"
#include "toy_model.hpp"

namespace several_programs_test {

using namespace tessera;
using plan::WindowKind;
using toy::contains;
using toy::failure_of;
using toy::Values;

constexpr std::size_t rows = 3;
constexpr std::array<std::size_t, 3> widths_of_generator = {5, 13, 7};
constexpr std::array<std::size_t, 3> widths_of_discriminator = {7, 11, 1};

constexpr float discriminator_rate = 0.02f;
constexpr float generator_rate = 0.03f;
constexpr float momentum = 0.9f;

enum class Sample { noise, real };
Values sample(Sample what, std::size_t width, int step, std::size_t micro, int rank) {
  return toy::sample(rows * width, step, micro, rank, what == Sample::noise ? 0 : 1);
}

// The discriminator says 1 for what is real and -1 for what is made: the gradient of the mean of the squared errors.
float error_gradient(float says, float should_say) { return 2.0f * (says - should_say) / float(rows); }

using Layers = toy::Layers<toy::Layer<float>>;

// How programs are told.
enum class Told { by_windows, by_passes };

// Micro-batches of steps of the maker; where it says none, those of the options, as the judge's always are.
using OfMaker = std::optional<std::size_t>;

// One rank's part of the game.
struct Game {
  explicit Game(World& world, const FullyShardOptions& options, Told told = Told::by_windows,
                OfMaker micro_batches = std::nullopt)
      : rank(world.rank()), of_judge(options.micro_batches), of_maker(micro_batches), model(world, options) {
    for (std::size_t l = 0; l < generator.size(); ++l) {
      units.push_back(&model.add(*generator[l], "generator." + std::to_string(l)));
    }
    for (std::size_t l = 0; l < discriminator.size(); ++l) {
      units.push_back(&model.add(*discriminator[l], "discriminator." + std::to_string(l)));
    }
    if (told == Told::by_passes) {
      record();
      return;
    }
    judge = &model.add_program(
        {.name = "judge", .windows = windows("f0 f1 f2 f3 b3 b2 f2 f3 b3 b2"), .evaluation = windows("e2 e3")});
    make = &model.add_program({.name = "make",
                               .windows = windows("f0 f1 f2 f3 b3 b2 b1 b0"),
                               .evaluation = windows("e0 e1"),
                               .trains = {{units[0], units[1]}},
                               .optimizer = sgd_of_maker(),
                               .micro_batches = of_maker});
  }
  std::vector<UnitWindow> windows(const std::string& text) const {
    std::vector<UnitWindow> result;
    for (const plan::WindowUse& use : tests::windows(text)) result.push_back({units[use.unit], use.kind, use.resumes});
    return result;
  }

  // The same, from the functions that train.
  void record() {
    judge =
        &model.add_program({.name = "judge",
                            .pass = [this] { pass_of_judge(0, 0); },
                            .evaluation_pass = [this] { evaluate(discriminator, widths_of_discriminator.front()); }});
    make = &model.add_program({.name = "make",
                               .pass = [this] { pass_of_maker(0, 0); },
                               .evaluation_pass = [this] { evaluate(generator, widths_of_generator.front()); },
                               .trains = {{units[0], units[1]}},
                               .optimizer = sgd_of_maker(),
                               .micro_batches = of_maker});
  }
  static Sgd sgd_of_maker() { return {.learning_rate = generator_rate, .momentum = momentum}; }

  void finalize() { model.finalize(AdamW{.learning_rate = discriminator_rate, .weight_decay = 0.0f}); }

  const Values& forward(Layers& layers, const Values& input) { return toy::forward(model, layers, input); }
  const Values& backward(Layers& layers, const Values& dy) { return toy::backward(model, layers, dy); }
  // Errors of what the discriminator says now.
  const Values& errors(std::size_t place, float should_say) {
    Values& dy = dys[place];
    dy.resize(rows);
    model.stream().submit([&dy, &y = discriminator.back()->y, should_say, scale = model.loss_scale()] {
      for (std::size_t r = 0; r < rows; ++r) dy[r] = error_gradient(y[r], should_say) * *scale;
    });
    return dy;
  }

  void pass_of_judge(int step, std::size_t micro) {
    noise[micro] = sample(Sample::noise, widths_of_generator.front(), step, micro, rank);
    real[micro] = sample(Sample::real, widths_of_discriminator.front(), step, micro, rank);
    forward(discriminator, forward(generator, noise[micro]));
    backward(discriminator, errors(0, -1.0f));
    forward(discriminator, real[micro]);
    backward(discriminator, errors(1, 1.0f));
  }
  void pass_of_maker(int step, std::size_t micro) {
    noise[micro] = sample(Sample::noise, widths_of_generator.front(), step, micro, rank);
    forward(discriminator, forward(generator, noise[micro]));
    backward(generator, backward(discriminator, errors(0, 1.0f)));
  }
  void evaluate(Layers& layers, std::size_t width) {
    real[0] = sample(Sample::real, width, 0, 0, rank);
    const Values* x = &real[0];
    for (auto& layer : layers) x = &model.evaluate(*layer, *x);
    model.synchronize();
  }

  void step_of_judge(int step) {
    model.begin(*judge);
    for (std::size_t micro = 0; micro < of_judge; ++micro) pass_of_judge(step, micro);
    model.update();
    model.synchronize();
  }
  void step_of_maker(int step) {
    model.begin(*make);
    for (std::size_t micro = 0; micro < of_maker.value_or(of_judge); ++micro) pass_of_maker(step, micro);
    model.update();
    model.synchronize();
  }

  int rank;
  std::size_t of_judge;
  OfMaker of_maker;
  Layers generator = toy::make_layers<toy::Layer<float>>(widths_of_generator, rows);
  Layers discriminator = toy::make_layers<toy::Layer<float>>(widths_of_discriminator, rows);
  std::array<Values, 4> noise, real;
  std::array<Values, 2> dys;
  FullyShard model;
  std::vector<Unit*> units;
  TrainingProgram* judge;
  TrainingProgram* make;
};

// Two steps of the discriminator for each of the generator.
constexpr int rounds = 3;

struct Outcome {
  toy::Weights weights;
  std::vector<double> norms;  // of rank 0, step by step
  std::array<std::int64_t, 2> updates{};
  std::uint64_t plan = 0;
};

Outcome play(int ranks, const FullyShardOptions& options, Told told = Told::by_windows,
             OfMaker of_maker = std::nullopt) {
  Outcome outcome;
  launch({.ranks = ranks, .timeout = std::chrono::seconds(20)}, [&](World& world) {
    Game game(world, options, told, of_maker);
    game.finalize();
    if (world.rank() == 0) outcome.plan = plan::hash(game.model.plan());
    for (int round = 0; round < rounds; ++round) {
      for (int step = 3 * round; step < 3 * round + 3; ++step) {
        step % 3 == 2 ? game.step_of_maker(step) : game.step_of_judge(step);
        if (world.rank() == 0) outcome.norms.push_back(game.model.last_step().gradient_norm);
      }
    }
    if (world.rank() == 0) {
      outcome.updates[1] = game.model.last_step().updates;
      game.model.begin(*game.judge);
      outcome.updates[0] = game.model.last_step().updates;
    }
    toy::collect_weights(game.model, outcome.weights);
  });
  return outcome;
}

bool same_bits(const Outcome& a, const Outcome& b) {
  return a.norms == b.norms && toy::same_bits(a.weights, b.weights);
}

// ---- the same without the runtime ----

std::vector<double> plain_sample(Sample what, std::size_t width, int step, std::size_t micro, int rank) {
  const Values values = sample(what, width, step, micro, rank);
  return {values.begin(), values.end()};
}
std::vector<double> plain_errors(const std::vector<double>& says, float should_say) {
  std::vector<double> dy;
  for (const double y : says) dy.push_back(2.0 * (y - double(should_say)) / double(rows));
  return dy;
}

// Returns the generator and the discriminator.
std::array<plain::Chain, 2> play_plainly(int ranks, std::size_t of_judge, std::size_t of_maker) {
  std::array<plain::Chain, 2> nets{plain::Chain("generator.", widths_of_generator),
                                   plain::Chain("discriminator.", widths_of_discriminator)};
  const auto each_batch = [&](std::size_t micro_batches, const std::function<void(std::size_t micro, int rank)>& body) {
    for (std::size_t micro = 0; micro < micro_batches; ++micro) {
      for (int rank = 0; rank < ranks; ++rank) body(micro, rank);
    }
  };
  const auto noise = [&](int step, std::size_t micro, int rank) {
    return nets[0].forward(plain_sample(Sample::noise, widths_of_generator.front(), step, micro, rank));
  };
  int judged = 0;
  for (int step = 0; step < 3 * rounds; ++step) {
    const bool judges = step % 3 != 2;
    const std::size_t micro_batches = judges ? of_judge : of_maker;
    const double divisor = double(ranks) * double(micro_batches);
    nets[judges].clear();
    each_batch(micro_batches, [&](std::size_t micro, int rank) {
      const std::vector<double> says = nets[1].forward(noise(step, micro, rank));
      if (!judges) {
        nets[0].backward(nets[1].backward(plain_errors(says, 1.0f), false));
        return;
      }
      nets[1].backward(plain_errors(says, -1.0f));
      const auto real = plain_sample(Sample::real, widths_of_discriminator.front(), step, micro, rank);
      nets[1].backward(plain_errors(nets[1].forward(real), 1.0f));
    });
    if (judges) {
      nets[1].update(divisor, plain::adamw(double(discriminator_rate), ++judged));
    } else {
      nets[0].update(divisor, plain::sgd(double(generator_rate), double(momentum)));
    }
  }
  return nets;
}

TEST_CASE("a_generator_and_a_discriminator_train_as_in_a_plain_loop") {
  struct MicroBatches {
    std::size_t of_judge;
    OfMaker of_maker;
  };
  for (const int ranks : {1, 2, 3, 4}) {
    for (const MicroBatches& each :
         {MicroBatches{1, {}}, MicroBatches{2, {}}, MicroBatches{1, 3}, MicroBatches{3, 1}, MicroBatches{2, 4}}) {
      FullyShardOptions options{.micro_batches = each.of_judge};
      const std::size_t of_maker = each.of_maker.value_or(each.of_judge);
      const Outcome outcome = play(ranks, options, Told::by_windows, each.of_maker);
      CHECK(outcome.updates == std::array<std::int64_t, 2>{2 * rounds, rounds});
      REQUIRE(outcome.weights.size() == 8);
      INFO(ranks << " ranks, " << each.of_judge << " and " << of_maker << " micro-batches");
      for (const plain::Chain& net : play_plainly(ranks, each.of_judge, of_maker)) {
        plain::check_near(outcome.weights, net);
      }
    }
  }
}

TEST_CASE("several_programs_are_bitwise_equal_between_strategies") {
  for (const toy::Mesh& mesh : toy::flat_meshes_and_one_of_replicas()) {
    for (const std::size_t micro_batches : {1u, 3u}) {
      const std::size_t of_maker = 4 - micro_batches;
      for (const auto mode : {AccumulationMode::reduced, AccumulationMode::local}) {
        // Each strategy gathers ahead in one of the modes, and not at all in the other.
        std::size_t turn = mode == AccumulationMode::local ? 1 : 0;
        FullyShardOptions options{.strategy = Strategy::ddp, .replicas = mesh.replicas};
        options.micro_batches = micro_batches;
        options.accumulation = mode;
        std::optional<Outcome> reference;
        for (const Strategy strategy : mesh.strategies()) {
          const std::size_t prefetch = ++turn % 2 == 0 ? 0 : 2;
          if (tests::sanitized && (strategy == Strategy::ddp || (turn + micro_batches + mesh.replicas) % 3 != 0))
            continue;
          if (!reference) reference = play(mesh.ranks, options, Told::by_windows, of_maker);
          INFO(to_string(strategy) << " on " << mesh.ranks << " ranks, prefetch " << prefetch);
          options.strategy = strategy;
          options.prefetch = prefetch;
          options.reshard_after_forward = prefetch == 0;
          options.diagnostics = {.delay_seed = 7 + prefetch, .poison = true, .touch = true, .queue_compute = true};
          CHECK(same_bits(play(mesh.ranks, options, Told::by_windows, of_maker), *reference));
        }
      }
    }
  }
}

TEST_CASE("a_program_of_one_micro_batch_needs_no_sums_that_another_needs") {
  launch({.ranks = 2}, [](World& world) {
    FullyShardOptions options{.accumulation = AccumulationMode::local};
    options.micro_batches = 3;
    Game game(world, options, Told::by_windows, 1);
    game.finalize();
    const plan::Plan& plan = game.model.plan();
    for (const std::size_t of_maker : {0u, 1u}) CHECK(!plan.unit_buffers[of_maker][plan::Role::accumulation].exists());
    for (const std::size_t of_judge : {2u, 3u}) CHECK(plan.unit_buffers[of_judge][plan::Role::accumulation].exists());
    CHECK(plan.gradient_divisor(0) == 6);
    CHECK(plan.gradient_divisor(1) == 2);
  });
}

TEST_CASE("programs_go_on_where_they_were_after_recompile") {
  const auto weights_of = [](bool recompiles) {
    toy::Weights weights;
    launch({.ranks = 3, .timeout = std::chrono::seconds(20)}, [&](World& world) {
      Game game(world, {});
      game.finalize();
      game.step_of_judge(0);
      game.step_of_maker(1);
      if (recompiles) game.model.recompile();
      CHECK(game.model.last_step().updates == 1);
      game.step_of_maker(2);
      game.step_of_judge(3);
      CHECK(game.model.last_step().updates == 2);
      toy::collect_weights(game.model, weights);
    });
    return weights;
  };
  CHECK(toy::same_bits(weights_of(true), weights_of(false)));
}

TEST_CASE("the_loss_scale_of_a_program_is_its_own") {
  launch({.ranks = 2, .timeout = std::chrono::seconds(20)}, [&](World& world) {
    Game game(world, {.loss_scaling = kernels::LossScaling{.initial = 8.0f, .dynamic = true}});
    game.finalize();
    game.model.begin(*game.make);
    game.noise[0] = sample(Sample::noise, widths_of_generator.front(), 0, 0, world.rank());
    game.forward(game.discriminator, game.forward(game.generator, game.noise[0]));
    game.dys[0].assign(rows, std::numeric_limits<float>::infinity());
    game.backward(game.generator, game.backward(game.discriminator, game.dys[0]));
    game.model.update();
    CHECK(game.model.last_step().skipped);
    CHECK(game.model.last_step().loss_scale == 4.0f);
    game.step_of_judge(0);
    CHECK_FALSE(game.model.last_step().skipped);
    CHECK(game.model.last_step().loss_scale == 8.0f);
    CHECK(game.model.last_step().updates == 1);
    game.step_of_maker(1);
    CHECK(game.model.last_step().loss_scale == 4.0f);
    CHECK(game.model.last_step().updates == 1);
    CHECK(game.model.last_step().skipped_updates == 1);
  });
}

TEST_CASE("each_program_has_its_evaluation_and_its_skipped_steps") {
  launch({.ranks = 3, .timeout = std::chrono::seconds(20)}, [&](World& world) {
    Game game(world, {});
    game.finalize();
    game.model.begin(*game.make);
    const Values noise = sample(Sample::noise, widths_of_generator.front(), 0, 0, world.rank());
    const Values* x = &noise;
    for (auto& layer : game.generator) x = &game.model.evaluate(*layer, *x);
    game.model.skip_step();
    CHECK(game.model.finished());
    CHECK(game.model.last_step().updates == 0);
    game.step_of_judge(0);
    CHECK_FALSE(game.model.finished());
  });
}

TEST_CASE("wrong_use_of_programs_is_refused_by_name") {
  using enum WindowKind;
  const auto check_fails = [](const char* part, const std::function<void(Game&)>& body) {
    toy::check_failure(part, 1, [&](World& world) {
      Game game(world, {});
      body(game);
    });
  };
  check_fails("program \"make\" cannot begin: a step of program \"judge\" is not done", [](Game& game) {
    game.finalize();
    game.model.open(*game.units[0], forward).close();
    game.model.begin(*game.make);
  });
  check_fails(
      "the backward window of unit discriminator.0 was opened out of order: the backward window of unit "
      "discriminator.1 of program \"make\" was expected",
      [](Game& game) {
        game.finalize();
        game.model.begin(*game.make);
        for (Unit* unit : game.units) game.model.open(*unit, forward).close();
        game.model.open(*game.units[2], backward);
      });
  check_fails("has no gradient, because program \"make\" does not train its unit", [](Game& game) {
    game.finalize();
    game.model.begin(*game.make);
    for (Unit* unit : game.units) game.model.open(*unit, forward).close();
    game.model.open(*game.units[3], backward).gradient(game.discriminator[1]->weight);
  });
  // Another pass than the one that was recorded, and an update of another program than was begun.
  const auto check_recorded = [](const char* part, const std::function<void(Game&)>& body) {
    toy::check_failure(part, 1, [&](World& world) {
      Game game(world, {}, Told::by_passes);
      game.finalize();
      body(game);
    });
  };
  check_recorded(
      "the backward window of unit generator.1 was opened out of order: the forward window of unit "
      "discriminator.0 of program \"judge\" was expected",
      [](Game& game) { game.pass_of_maker(0, 0); });
  check_recorded(
      "program \"make\" cannot begin: a step of program \"judge\" is not done, finish it with its windows "
      "and update() first",
      [](Game& game) {
        game.pass_of_judge(0, 0);
        game.model.begin(*game.make);
        game.model.update();
      });
  check_recorded(
      "update() came after 0 of 1 micro-batches: the forward window of unit generator.0 of program \"make\" "
      "was expected",
      [](Game& game) {
        game.model.begin(*game.make);
        game.model.update();
      });
  check_fails("program \"blank\" has no windows: list them, or give it the pass that opens them", [](Game& game) {
    game.model.add_program({.name = "blank"});
    game.finalize();
  });
  toy::check_failure("no program trains unit 4 (forgotten): name it in one, or freeze its parameters", 1,
                     [](World& world) {
                       toy::Layer<float> forgotten(3, 3, rows);
                       Game game(world, {});
                       game.model.add(forgotten, "forgotten");
                       game.finalize();
                     });
  check_fails("program \"late\": added after finalize()", [](Game& game) {
    game.finalize();
    game.model.add_program({.name = "late"});
  });
  check_fails("program \"judge\" belongs to another model", [](Game& game) {
    game.finalize();
    game.model.begin(TrainingProgram("judge", 0));
  });
  check_fails("program \"judge\" has no optimizer", [](Game& game) { game.model.finalize(); });
  const auto check_with = [](const char* part, std::size_t of_maker, const std::function<void(Game&)>& body) {
    toy::check_failure(part, 1, [&](World& world) {
      Game game(world, {}, Told::by_windows, of_maker);
      game.finalize();
      game.model.begin(*game.make);
      body(game);
    });
  };
  check_with("micro_batches of program \"make\" is 0: choose 1 to 1048576", 0, [](Game&) {});
  check_with("all 2 micro-batches of this step are done", 2, [](Game& game) {
    for (std::size_t micro = 0; micro < 3; ++micro) game.pass_of_maker(0, micro);
  });
  check_with("update() came after 0 of 2 micro-batches", 2, [](Game& game) { game.model.update(); });
  check_fails("unit 0 (generator.0) is trained by two programs, \"make\" and \"again\"", [](Game& game) {
    game.model.add_program({.name = "again", .windows = {{game.units[0], forward}, {game.units[0], backward}}});
    game.finalize();
  });
  check_fails("program \"odd\" names a unit that is null", [](Game& game) {
    game.model.add_program({.name = "odd", .windows = {{nullptr, forward}}});
  });
  toy::check_failure("give its programs in one way", 1, [](World& world) {
    FullyShardOptions options{.program = plan::Program::chain(4)};
    Game game(world, options);
    game.finalize();
  });
  toy::check_failure("count the steps of one program, and the model has 2", 2, [](World& world) {
    Game game(world, {.replicas = 2, .outer = {.every = 4}});
    game.finalize();
  });
}

TEST_CASE("programs_recorded_from_passes_are_those_that_are_listed") {
  for (const int ranks : {1, 3}) {
    for (const Strategy strategy : {Strategy::ddp, Strategy::fsdp}) {
      FullyShardOptions options{.strategy = strategy};
      options.micro_batches = 2;
      const Outcome listed = play(ranks, options);
      options.diagnostics.queue_compute = true;
      const Outcome recorded = play(ranks, options, Told::by_passes);
      CHECK(recorded.plan == listed.plan);
      CHECK(same_bits(recorded, listed));
    }
  }
}

// A unit in two windows, one that is skipped, half precision, frozen parameters, and the user's block of activations.
TEST_CASE("a_recorded_pass_may_do_what_passes_do") {
  launch({.ranks = 2, .timeout = std::chrono::seconds(20)}, [&](World& world) {
    toy::Layer<bf16> tied(3, 3, rows), fixed(3, 3, rows), expert(3, 3, rows);
    fixed.bias.set_frozen(true);
    FullyShard model(world, {.precision = bf16_mixed, .activations = Bytes(640)});
    model.add(tied);
    model.add(fixed);
    Unit& optional = model.add(expert, {.name = "expert", .optional = true});
    const Values x(3 * rows, 0.25f), dy(3 * rows, 1.0f);
    std::size_t calls = 0;
    const auto pass = [&] {
      ++calls;
      const std::span<std::byte> kept = model.activation_memory();
      CHECK(kept.size() == 640);
      kept[639] = std::byte{1};
      CHECK(*model.loss_scale() == 1.0f);
      model.forward(tied, model.forward(fixed, model.forward(tied, x)));
      model.skip(optional, WindowKind::forward);
      model.skip(optional, WindowKind::backward);
      model.backward(tied, model.backward(fixed, model.backward(tied, dy)));
      model.synchronize();
    };
    model.add_program({.pass = pass});
    model.finalize(AdamW{});
    CHECK(calls == 1);
    CHECK(model.plan().programs.size() == 1);
    CHECK(model.plan().programs.front().name == "train");
    CHECK(model.plan().programs.front().micro_batch.size() == 8);
    CHECK(model.plan().backward_windows == std::vector<std::size_t>{2, 1, 1});
    pass();
    model.update();
    CHECK(model.last_step().updates == 1);
    model.recompile();
    pass();
    model.update();
    CHECK(calls == 3);
  });
}

TEST_CASE("a_pass_that_cannot_be_recorded_is_refused_by_name") {
  using enum WindowKind;
  const auto check_fails = [](const char* part, int ranks,
                              const std::function<void(FullyShard&, toy::Layer<float>&, int)>& pass) {
    toy::check_failure(part, ranks, [&](World& world) {
      toy::Layer<float> layer(3, 3, rows);
      FullyShard model(world);
      model.add(layer, "layer");
      model.add_program({.name = "odd", .pass = [&] { pass(model, layer, world.rank()); }});
      model.finalize(AdamW{});
    });
  };
  check_fails("the pass of program \"odd\" opened no window", 1, [](auto&, auto&, int) {});
  check_fails("a pass that is recorded opens windows and nothing else", 1,
              [](auto& model, auto&, int) { model.update(); });
  check_fails("recording program \"odd\", the forward window of unit layer is still open where its pass ends", 1,
              [](auto& model, auto&, int) {
                static std::optional<Window> left;
                left.emplace(model.open(model.unit(0), forward));
              });
  check_fails("the backward window of unit layer cannot open: rank 0, recording program \"odd\", the forward window", 1,
              [](auto& model, auto&, int) {
                const Window first = model.open(model.unit(0), forward);
                model.open(model.unit(0), backward);
              });
  check_fails("layer.weight has no gradient here", 1, [](auto& model, auto& layer, int) {
    Window window = model.open(model.unit(0), forward);
    window.gradient(layer.weight);
  });
  check_fails("parameter layer.weight is fp32 here, not bf16", 1, [](auto& model, auto& layer, int) {
    Window window = model.open(model.unit(0), forward);
    window.template parameter<bf16>(layer.weight);
  });
  check_fails("no such batch", 3, [](auto& model, auto&, int rank) {
    model.within(model.unit(0), forward, [&](Window&) {
      if (rank == 1) throw std::runtime_error("no such batch");
    });
    model.within(model.unit(0), backward, [](Window&) {});
  });
  const Values dy(3 * rows);
  check_fails("windows of a micro-batch = 2", 2, [&dy](auto& model, auto& layer, int rank) {
    model.forward(layer, dy);
    if (rank == 1) model.forward(layer, dy);
    model.backward(layer, dy);
  });
  toy::check_failure("program \"both\" lists windows and has a pass", 1, [](World& world) {
    Game game(world, {});
    game.model.add_program({.name = "both", .windows = {{game.units[0], forward}}, .pass = [] {}});
  });
}

TEST_CASE("finalize_may_be_repeated_after_it_has_failed") {
  launch({.ranks = 2, .timeout = std::chrono::seconds(20)}, [](World& world) {
    Game game(world, {});
    CHECK_THROWS_WITH_AS(game.model.finalize(), doctest::Contains("program \"judge\" has no optimizer"), UsageError);
    toy::Layer<float> forgotten(3, 3, rows);
    FullyShard other(world, {.program = plan::Program::chain(2)});
    other.add(forgotten);
    CHECK_THROWS_AS(other.finalize(Sgd{.learning_rate = 0.5f}), UsageError);
    game.finalize();
    game.step_of_judge(0);
    game.step_of_maker(1);
    CHECK_FALSE(game.model.pieces(*game.units[2], "m").empty());
    CHECK_THROWS_WITH_AS(game.model.pieces(*game.units[0], "m"),
                         doctest::Contains("there are master, gradient, velocity"), UsageError);
    CHECK_THROWS_WITH_AS(game.model.step_scalars(2), doctest::Contains("the model has 2, counted from 0"), UsageError);
  });
}

TEST_CASE("ranks_that_begin_different_programs_are_told") {
  using enum WindowKind;
  const std::string text = failure_of(2, [](World& world) {
    toy::Layer<float> layer(3, 3, rows);
    layer.weight.set_frozen(true), layer.bias.set_frozen(true);
    FullyShard model(world);
    const Unit* const unit = &model.add(layer);
    const auto& one = model.add_program({.name = "one", .windows = {{unit, forward}}});
    const auto& two = model.add_program({.name = "two", .windows = {{unit, forward}}});
    model.finalize(AdamW{});
    model.begin(world.rank() == 0 ? one : two);  // they do the same, and count different steps
    model.skip_step();
    model.synchronize();
  });
  INFO(text);
  CHECK(contains(text, "of program one"));
  CHECK(contains(text, "of program two"));
}

TEST_CASE("ranks_that_differ_in_a_program_are_told") {
  using enum WindowKind;
  const std::string text = failure_of(2, [](World& world) {
    toy::Layer<float> layer(3, 3, rows), other(3, 3, rows);
    FullyShard model(world);
    Unit& first = model.add(layer, "first");
    Unit& second = model.add(other, "second");
    model.add_program({.name = "one", .windows = {{&first, forward}, {&first, backward}}});
    model.add_program({.name = "two",
                       .windows = {{&second, forward}, {&second, backward}},
                       .optimizer = AdamW{.learning_rate = world.rank() == 0 ? 0.5f : 0.25f}});
    model.finalize(AdamW{});
  });
  CHECK(contains(text, "learning_rate of program two = 0.5"));
  CHECK(contains(text, "learning_rate of program two = 0.25"));
}

TEST_CASE("ranks_that_differ_in_a_programs_micro_batches_are_told") {
  const std::string text = failure_of(2, [](World& world) {
    Game game(world, {}, Told::by_windows, world.rank() == 0 ? 2 : 3);
    game.finalize();
  });
  CHECK(contains(text, "rank 0 with micro_batches of program make = 2; rank 1 with micro_batches of program make = 3"));
}

}  // namespace several_programs_test
