// Torch modules with granules: dropout, in checkpointed parts too, has the same bits on any number of ranks; buffers
// that passes write are named.
#include <ATen/Context.h>

#include <cstddef>
#include <mutex>
#include <string>
#include <vector>

#include "networks.hpp"

namespace torch_granules_test {

namespace nn = torch::nn;
using tessera::Strategy;
using tessera::UsageError;
using tessera::World;

constexpr std::size_t granules = 6;

struct Dropping : networks::Perceptron {
  torch::Tensor forward(const torch::Tensor& input) override {
    torch::Tensor x = first(input);
    for (const auto& block : *blocks) {
      const auto part = [layer = block->as<nn::Linear>(), this](const torch::Tensor& at) {
        return at + torch::dropout(torch::tanh(layer->forward(at)), 0.3, is_training());
      };
      x = checkpoints ? tessera::torch::checkpoint(part, x) : part(x);
    }
    return last(torch::dropout(x + 0.1 * torch::randn_like(x), 0.2, is_training()));
  }
  bool checkpoints = false;
};

struct Normed : networks::Network {
  Normed() {
    layers = register_module("layers", nn::Sequential(nn::Linear(7, 5), nn::BatchNorm1d(5), nn::Linear(5, 3)));
  }
  torch::Tensor forward(const torch::Tensor& input) override { return layers->forward(input); }
  nn::Sequential layers{nullptr};
};

struct Run {
  int ranks = 1;
  int steps = 4;
  Strategy strategy = Strategy::fsdp;
  std::uint64_t seed = 3;
  bool checkpoints = false;
  bool weighs = false;                     // granules have weights
  bool draws_elsewhere = false;            // the program draws and evaluates, on each rank another number of times
  int dropped_step = -1;                   // whose gradients the model inside drops; none: -1
  std::vector<std::size_t> of_steps = {};  // granules that have samples, by step in turn; none: all have
};

const networks::Kind kind = {"dropping", [] { return std::make_shared<Dropping>(); }, {7}, "blocks"};

template <typename Model>
void train_granule(Model& model, World& world, const Run& run, std::size_t number) {
  const networks::Batch batch = networks::batch_of(kind, static_cast<int>(number), 5);
  const torch::Tensor noise = model.pass([](auto&) { return torch::rand({5, 7}); });
  const auto loss = torch::cross_entropy_loss(model.forward(batch.input + noise), batch.target);
  if (run.draws_elsewhere) torch::rand({1 + world.rank()});
  model.backward(loss);
}

template <typename Model>
void train_step(Model& model, World& world, const Run& run, int step) {
  const tessera::Granules mine = model.granules();
  const std::size_t with_samples =
      run.of_steps.empty() ? mine.total : run.of_steps[static_cast<std::size_t>(step) % run.of_steps.size()];
  std::vector<double> weights;
  for (std::size_t round = 0; round < mine.mine() && mine.number(round) < with_samples; ++round) {
    train_granule(model, world, run, static_cast<std::size_t>(step) * granules + mine.number(round));
    weights.push_back(1.0 + static_cast<double>(mine.number(round)));
  }
  if (step == run.dropped_step) return model.sharded().discard_gradients();
  if (weights.empty()) return model.skip_step();
  run.weighs ? model.update({.granule_weights = weights}) : model.update();
}

using Weights = std::vector<std::vector<float>>;

template <typename Model>
Weights weights_of(Model& model) {
  Weights weights;
  for (std::size_t u = 0; u < model.sharded().unit_count(); ++u) {
    for (const tessera::Parameter* parameter : model.sharded().unit(u).parameters()) {
      weights.push_back(model.sharded().whole(*parameter));
    }
  }
  return weights;
}

Weights train(const Run& run) {
  const auto values = networks::original(kind);
  Weights result;
  tessera::launch({.ranks = run.ranks, .threads = 1}, [&](World& world) {
    const auto net = std::make_shared<Dropping>();
    net->checkpoints = run.checkpoints;
    networks::copy_values(*values, *net);
    tessera::torch::FullyShard model(world, net, {.units = tessera::torch::children_of("blocks")},
                                     {.strategy = run.strategy, .granules = granules, .seed = run.seed});
    model.finalize(tessera::AdamW{.learning_rate = 0.01f, .clip_norm = 0.5f});
    for (int step = 0; step < run.steps; ++step) {
      train_step(model, world, run, step);
      if (!run.draws_elsewhere) continue;
      const torch::NoGradGuard evaluation;
      model.forward(torch::ones({2, 7}));
    }
    const Weights weights = weights_of(model);
    if (world.rank() == 0) result = weights;
  });
  return result;
}

void check_any_ranks(const Run& alone) {
  const Weights reference = train(alone);
  Run untrained = alone;
  untrained.steps = 0;
  REQUIRE_MESSAGE((train(untrained) != reference), "nothing was trained");
  for (const int ranks : {2, 3, 5, 6}) {
    for (const Strategy strategy : {Strategy::ddp, Strategy::fsdp}) {
      CAPTURE(ranks);
      CAPTURE(tessera::to_string(strategy));
      Run run = alone;
      run.ranks = ranks;
      run.strategy = strategy;
      CHECK_MESSAGE((train(run) == reference), "weights differ");
    }
  }
}

TEST_CASE("dropout_in_torch_modules_has_the_same_bits_on_any_number_of_ranks") { check_any_ranks({}); }

TEST_CASE("dropout_in_checkpointed_parts_has_the_bits_that_it_has_elsewhere_on_any_number_of_ranks") {
  check_any_ranks({.checkpoints = true});
  CHECK_MESSAGE((train({.ranks = 2, .checkpoints = true}) == train({})), "weights differ");
}

TEST_CASE("dropout_has_the_same_bits_where_granules_have_no_samples_and_programs_draw_and_evaluate") {
  check_any_ranks({.weighs = true, .draws_elsewhere = true, .of_steps = {6, 1, 4}});
}

TEST_CASE("dropout_has_the_same_bits_behind_a_step_that_the_model_inside_has_ended") {
  check_any_ranks({.dropped_step = 1});
}

TEST_CASE("dropout_of_granules_is_by_the_model_s_seed_and_differs_from_step_to_step") {
  CHECK_MESSAGE((train({.seed = 4}) != train({.seed = 3})), "the seed changes nothing");
  tessera::launch({.ranks = 1, .threads = 1}, [&](World& world) {
    const auto net = std::make_shared<Dropping>();
    tessera::torch::FullyShard model(world, net, {}, {.granules = 2});
    model.finalize(tessera::Sgd{.learning_rate = 0.0f});
    const torch::Tensor input = torch::ones({4, 7});
    std::vector<std::vector<float>> outputs;
    for (int step = 0; step < 2; ++step) {
      for (int granule = 0; granule < 2; ++granule) {
        const torch::Tensor output = model.forward(input);
        outputs.push_back(networks::floats(output));
        model.backward(output.sum());
      }
      model.update();
    }
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      for (std::size_t j = 0; j < i; ++j) CHECK(outputs[i] != outputs[j]);
    }
  });
}

// The forward pass of a granule goes on where it was, and does not begin anew.
TEST_CASE("passes_of_one_granule_draw_one_after_the_other") {
  tessera::launch({.ranks = 1, .threads = 1}, [&](World& world) {
    tessera::torch::FullyShard model(world, std::make_shared<Dropping>(), {}, {.granules = 2});
    model.finalize(tessera::Sgd{.learning_rate = 0.0f});
    const auto draw = [&] { return networks::floats(model.pass([](Dropping&) { return torch::rand({3}); })); };
    const auto first = draw(), second = draw();
    CHECK(first != second);
  });
}

TEST_CASE("torch_s_own_generator_stays_where_it_is") {
  const auto state = [] { return at::globalContext().defaultGenerator(at::kCPU).get_state(); };
  tessera::launch({.ranks = 1, .threads = 1}, [&](World& world) {
    const auto net = std::make_shared<Dropping>();
    const torch::Tensor before = state();
    tessera::torch::FullyShard model(world, net, {}, {.granules = granules});
    model.finalize(tessera::Sgd{});
    const Run run;
    for (int step = 0; step < 2; ++step) train_step(model, world, run, step);
    CHECK(torch::equal(state(), before));
    const torch::NoGradGuard evaluation;
    model.forward(torch::ones({2, 7}));
    CHECK_FALSE(torch::equal(state(), before));
  });
}

// ---- buffers ----

// Returns the weights of a network with a norm, whose buffers may be each rank's own where these match.
Weights train_normed(int ranks, const std::vector<std::string>& own_buffers) {
  torch::manual_seed(7);
  const auto values = std::make_shared<Normed>();
  Weights result;
  tessera::launch({.ranks = ranks, .threads = 1}, [&](World& world) {
    const auto net = std::make_shared<Normed>();
    networks::copy_values(*values, *net);
    tessera::torch::FullyShard model(world, net, {.own_buffers = own_buffers}, {.granules = granules});
    model.finalize(tessera::Sgd{.learning_rate = 0.1f});
    for (int step = 0; step < 2; ++step) train_step(model, world, {}, step);
    const Weights weights = weights_of(model);
    if (world.rank() == 0) result = weights;
  });
  return result;
}

TEST_CASE("a_buffer_that_passes_write_is_an_error_that_names_it_where_there_are_granules") {
  CHECK_THROWS_WITH_AS(train_normed(1, {}), doctest::Contains("has written to buffer layers.1.running_mean, and"),
                       UsageError);
  CHECK_THROWS_WITH_AS(train_normed(2, {"*.running_*"}), doctest::Contains("buffer layers.1.num_batches_tracked, and"),
                       UsageError);
}

TEST_CASE("weights_behind_a_torch_norm_have_the_same_bits_on_any_number_of_ranks") {
  const Weights reference = train_normed(1, {"layers.1.*"});
  for (const int ranks : {2, 5}) CHECK_MESSAGE((train_normed(ranks, {"layers.1.*"}) == reference), "weights differ");
}

}  // namespace torch_granules_test
