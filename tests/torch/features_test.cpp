// What FullyShard has beside training: frozen and tied parameters, learnt orders, evaluation, buffers, names.
#include <algorithm>
#include <filesystem>

#include "networks.hpp"
#include "tessera/base/error.hpp"

namespace features_test {

using networks::Perceptron;
using tessera::Strategy;
using tessera::torch::FullyShard;
namespace nn = torch::nn;

std::vector<float> floats(const torch::Tensor& tensor) {
  const torch::Tensor flat = tensor.detach().to(torch::kFloat).contiguous();
  return {flat.data_ptr<float>(), flat.data_ptr<float>() + flat.numel()};
}

// A step of SGD on two ranks; every rank computes with the same input.
template <typename Net, typename Body>
void train_step(const std::shared_ptr<Net>& values, Strategy strategy, tessera::torch::ModuleOptions units, Body body,
                bool learn = false) {
  tessera::launch({.ranks = 2}, [&](tessera::World& world) {
    const auto net = std::make_shared<Net>();
    networks::copy_values(*values, *net);
    FullyShard model(world, net, units, {.strategy = strategy});
    const torch::Tensor input = torch::linspace(-1, 1, 6).view({2, 3});
    if (learn) model.learn([&] { net->forward(input); });
    model.finalize(tessera::Sgd{.learning_rate = 0.1f});
    model.backward(model.forward(input).square().sum());
    model.update();
    body(model, *net);
  });
}

// The same step in torch alone.
template <typename Net>
void plain_step(Net& net) {
  net.forward(torch::linspace(-1, 1, 6).view({2, 3})).square().sum().backward();
  const torch::NoGradGuard no_grad;
  for (auto& parameter : net.parameters()) {
    if (!parameter.grad().defined()) continue;
    parameter -= 0.1 * parameter.grad();
    parameter.mutable_grad() = torch::Tensor();  // one with two names comes twice
  }
}

void check_close(const std::vector<float>& values, const std::vector<float>& expected) {
  REQUIRE(values.size() == expected.size());
  for (std::size_t i = 0; i < values.size(); ++i) CHECK(values[i] == doctest::Approx(expected[i]).epsilon(1e-5));
}

// Its first layer is used again at the end, and its scale before and behind the second layer.
struct Tied : nn::Module {
  Tied() {
    outer = register_module("outer", nn::Linear(3, 3));
    inner = register_module("inner", nn::Linear(3, 3));
    again = register_module("again", outer.ptr());
    scale = register_parameter("scale", torch::full({3}, 1.5f));
  }
  torch::Tensor forward(const torch::Tensor& x) { return again->forward(inner(outer(x) * scale) * scale); }
  nn::Linear outer{nullptr}, inner{nullptr};
  std::shared_ptr<nn::LinearImpl> again;
  torch::Tensor scale;
};

TEST_CASE("a_tied_layer_trains_once_its_order_is_learnt") {
  for (const Strategy strategy : {Strategy::ddp, Strategy::zero1, Strategy::zero2, Strategy::fsdp}) {
    CAPTURE(tessera::to_string(strategy));
    const auto values = std::make_shared<Tied>();
    const auto check = [&](auto& model, Tied&) {
      Tied plain;
      networks::copy_values(*values, plain);
      plain_step(plain);
      for (const char* name : {"outer.weight", "outer.bias", "inner.weight", "scale"}) {
        CAPTURE(name);
        check_close(model.sharded().whole(model.parameter(name)), floats(plain.named_parameters()[name]));
      }
    };
    train_step(values, strategy, {.units = tessera::torch::named({"outer", "inner"})}, check, true);
  }
}

TEST_CASE("an_order_that_is_no_chain_is_an_error_unless_it_was_learnt") {
  const auto values = std::make_shared<Tied>();
  CHECK_THROWS_WITH_AS(
      train_step(values, Strategy::fsdp, {.units = tessera::torch::named({"outer", "inner"})}, [](auto&, Tied&) {}),
      doctest::Contains("was opened out of order"), tessera::Error);
}

struct Frozen : nn::Module {
  Frozen() {
    for (int i = 0; i < 3; ++i) layers->push_back(nn::Linear(3, 3));
    register_module("layers", layers);
    for (auto& parameter : layers[1]->parameters()) parameter.set_requires_grad(false);
    layers[2]->as<nn::Linear>()->bias.set_requires_grad(false);
  }
  torch::Tensor forward(const torch::Tensor& x) { return layers->forward(x); }
  nn::Sequential layers;
};

TEST_CASE("frozen_parameters_stay_and_let_gradients_through") {
  for (const Strategy strategy : {Strategy::ddp, Strategy::fsdp}) {
    const auto values = std::make_shared<Frozen>();
    train_step(values, strategy, {.units = tessera::torch::children_of("layers")}, [&](auto& model, Frozen&) {
      Frozen plain;
      networks::copy_values(*values, plain);
      plain_step(plain);
      for (const auto& parameter : plain.named_parameters()) {
        CAPTURE(parameter.key());
        check_close(model.sharded().whole(model.parameter(parameter.key())), floats(parameter.value()));
      }
    });
  }
}

// The second layer is checkpointed, and used once more outside of that.
struct Recomputed : nn::Module {
  Recomputed() {
    for (int i = 0; i < 3; ++i) layers->push_back(nn::Linear(3, 3));
    register_module("layers", layers);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const auto part = [this](const torch::Tensor& input) {
      ++runs;
      return torch::tanh(layer(1)->forward(torch::tanh(layer(1)->forward(input))));
    };
    const torch::Tensor y = layer(0)->forward(x);
    const torch::Tensor z = checkpoints ? tessera::torch::checkpoint(part, y) : part(y);
    return layer(2)->forward(layer(1)->weight.sum() * z);
  }
  nn::LinearImpl* layer(std::size_t i) { return layers[i]->as<nn::Linear>(); }
  nn::ModuleList layers;
  bool checkpoints = true;
  int runs = 0;
};

TEST_CASE("a_checkpointed_part_runs_again_and_gives_the_gradients_of_one_that_is_not") {
  for (const Strategy strategy : {Strategy::ddp, Strategy::zero2, Strategy::fsdp}) {
    CAPTURE(tessera::to_string(strategy));
    const auto values = std::make_shared<Recomputed>();
    train_step(values, strategy, {.units = tessera::torch::children_of("layers")}, [&](auto& model, Recomputed& net) {
      CHECK(net.runs == 2);
      Recomputed plain;
      plain.checkpoints = false;
      networks::copy_values(*values, plain);
      plain_step(plain);
      for (const auto& parameter : plain.named_parameters()) {
        CAPTURE(parameter.key());
        check_close(model.sharded().whole(model.parameter(parameter.key())), floats(parameter.value()));
      }
    });
  }
}

TEST_CASE("a_checkpointed_part_that_draws_random_numbers_is_an_error") {
  const auto draws = [](const torch::Tensor& x) { return torch::dropout(x, 0.5, true); };
  CHECK_THROWS_WITH_AS(tessera::torch::checkpoint(draws, torch::ones({8})), doctest::Contains("drew random numbers"),
                       tessera::UsageError);
}

TEST_CASE("evaluation_passes_come_between_steps_and_change_nothing") {
  const networks::Kind kind = networks::all_kinds()[1];
  for (const Strategy strategy : {Strategy::ddp, Strategy::fsdp}) {
    tessera::launch({.ranks = 2}, [&](tessera::World& world) {
      const auto net = std::make_shared<networks::Convolutions>();
      FullyShard model(world, net, {.units = tessera::torch::children_of("layers")}, {.strategy = strategy});
      model.finalize(tessera::AdamW{});
      const auto batch = networks::batch_of(kind, 0, 4);
      const auto evaluate = [&] {
        const torch::NoGradGuard no_grad;
        net->eval();
        torch::Tensor y = model.forward(batch.input);
        net->train();
        return floats(y);
      };
      const std::vector<float> before = evaluate();
      CHECK(evaluate() == before);
      model.backward(torch::cross_entropy_loss(model.forward(batch.input), batch.target));
      model.update();
      CHECK(evaluate() != before);
    });
  }
}

TEST_CASE("buffers_are_the_runtimes_and_the_modules_at_once") {
  const networks::Kind kind = networks::all_kinds()[1];
  tessera::launch({.ranks = 2}, [&](tessera::World& world) {
    const auto net = std::make_shared<networks::Convolutions>();
    torch::Tensor mean = net->named_buffers()["layers.norm.running_mean"];
    {
      FullyShard model(world, net, {.units = tessera::torch::children_of("layers")});
      model.finalize(tessera::AdamW{});
      const auto batch = networks::batch_of(kind, world.rank(), 4);
      model.backward(torch::cross_entropy_loss(model.forward(batch.input), batch.target));
      model.update();
      const std::vector<float> mine = floats(mean);
      CHECK(std::any_of(mine.begin(), mine.end(), [](float value) { return value != 0.0f; }));
      const auto of_rank = [&](int rank) { return rank == world.rank() ? mine[0] : 0.0f; };
      const double first = world.sum(of_rank(0), "first");
      CHECK(first != world.sum(of_rank(1), "second"));
      model.sharded().synchronize_buffers();
      CHECK(floats(mean)[0] == static_cast<float>(first));
    }
    CHECK(floats(mean).size() == 4);  // the module has it still
  });
}

TEST_CASE("every_rank_begins_with_the_values_of_rank_0") {
  for (const Strategy strategy : {Strategy::ddp, Strategy::fsdp}) {
    std::vector<float> first;
    std::vector<float> whole;
    tessera::launch({.ranks = 3}, [&](tessera::World& world) {
      const auto net = std::make_shared<nn::LinearImpl>(40, 40);  // more than one rank's share of each shard
      if (world.rank() == 0) first = floats(net->weight);
      FullyShard model(world, net, {.units = tessera::torch::named({})}, {.strategy = strategy});
      model.finalize(tessera::AdamW{});
      const std::vector<float> found = model.sharded().whole(model.parameter("weight"));
      if (world.rank() == 0) whole = found;
    });
    CHECK(whole == first);
  }
}

TEST_CASE("modules_made_from_one_seed_are_equal_on_all_ranks") {
  const std::vector<float> expected = floats(tessera::torch::make_module<Perceptron>(5)->last->weight);
  tessera::launch({.ranks = 4}, [&](tessera::World&) {
    for (int i = 0; i < 20; ++i) CHECK(floats(tessera::torch::make_module<Perceptron>(5)->last->weight) == expected);
  });
}

TEST_CASE("weights_on_disk_have_the_modules_own_names") {
  const auto path = std::filesystem::temp_directory_path() / "tessera_torch_names.safetensors";
  tessera::launch({.ranks = 2}, [&](tessera::World& world) {
    const auto net = std::make_shared<Perceptron>();
    const auto named = net->named_parameters();
    FullyShard model(world, net, {.units = tessera::torch::children_of("blocks")});
    model.finalize(tessera::AdamW{});
    tessera::dump_weights(model.sharded(), path);
    world.barrier("written");
    const tessera::SafetensorsReader file(path);
    std::vector<std::string> stored;
    for (const tessera::StoredTensor& tensor : file.tensors()) stored.push_back(tensor.name);
    const std::vector<std::string> names = named.keys();
    CHECK(std::is_permutation(stored.begin(), stored.end(), names.begin(), names.end()));
  });
  std::filesystem::remove(path);
}

// Seven samples on three ranks, which have four, three and none, and one step more for a rank that has one.
TEST_CASE("uneven_data_are_their_exact_mean") {
  const auto values = std::make_shared<Perceptron>();
  const networks::Batch batch = networks::batch_of(networks::all_kinds()[0], 0, 7);
  const auto sum_of_losses = [](const torch::Tensor& scores, const torch::Tensor& target) {
    return torch::cross_entropy_loss(scores, target, {}, at::Reduction::Sum);
  };

  const auto plain = std::make_shared<Perceptron>();
  networks::copy_values(*values, *plain);
  for (const auto& [first, count] : {std::pair{0, 7}, {2, 1}}) {
    const auto loss =
        sum_of_losses(plain->forward(batch.input.narrow(0, first, count)), batch.target.narrow(0, first, count)) /
        count;
    plain->zero_grad();
    loss.backward();
    const torch::NoGradGuard no_grad;
    for (auto& parameter : plain->parameters()) parameter -= 0.1 * parameter.grad();
  }

  for (const Strategy strategy : {Strategy::ddp, Strategy::fsdp}) {
    tessera::launch({.ranks = 3}, [&](tessera::World& world) {
      const auto net = std::make_shared<Perceptron>();
      networks::copy_values(*values, *net);
      FullyShard model(world, net, {.units = tessera::torch::children_of("blocks")}, {.strategy = strategy});
      model.finalize(tessera::Sgd{.learning_rate = 0.1f});
      std::vector<std::pair<int, int>> mine;  // first sample and count, by step
      if (world.rank() == 0) mine = {{0, 4}, {2, 1}};
      if (world.rank() == 1) mine = {{4, 3}};
      std::size_t step = 0;
      do {
        if (step < mine.size()) {
          const auto [first, count] = mine[step];
          model.backward(
              sum_of_losses(model.forward(batch.input.narrow(0, first, count)), batch.target.narrow(0, first, count)));
          model.update({.weight = count});
        } else {
          model.skip_step();
        }
        ++step;
      } while (!model.finished());
      CHECK(step == 3);
      const auto expected = plain->named_parameters();
      for (const auto& parameter : expected) {
        check_close(model.sharded().whole(model.parameter(parameter.key())), floats(parameter.value()));
      }
    });
  }
}

}  // namespace features_test
