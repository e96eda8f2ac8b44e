// Activation checkpointing: the gradients of parts that are not checkpointed, from the same random numbers.
#include <thread>

#include "networks.hpp"
#include "tessera/base/error.hpp"

namespace checkpoint_test {

using networks::check_as_plain_step;
using networks::floats;
using networks::train_step;
using tessera::Strategy;
using tessera::torch::FullyShard;
namespace nn = torch::nn;

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
      check_as_plain_step(model, *values, plain);
    });
  }
}

// Each unit drops half of what it computes; the parts may be checkpointed.
struct Dropping : nn::Module {
  Dropping() {
    for (int i = 0; i < 3; ++i) layers->push_back(nn::Linear(16, 16));
    register_module("layers", layers);
  }
  torch::Tensor forward(torch::Tensor x) {
    for (std::size_t i = 0; i < 3; ++i) {
      const auto part = [this, i](const torch::Tensor& input) {
        return torch::dropout(torch::tanh(layers[i]->as<nn::Linear>()->forward(input)), 0.5, true);
      };
      x = checkpoints ? tessera::torch::checkpoint(part, x) : part(x);
    }
    return x;
  }
  nn::ModuleList layers;
  bool checkpoints = true;
};

TEST_CASE("checkpointed_parts_drop_the_same_as_parts_that_are_not") {
  const auto train = [](bool checkpoints, Strategy strategy) {
    std::vector<std::vector<float>> weights;
    tessera::launch({.ranks = 1}, [&](tessera::World& world) {
      const auto net = tessera::torch::make_module<Dropping>(3);
      net->checkpoints = checkpoints;
      FullyShard model(world, net, {.units = tessera::torch::children_of("layers")}, {.strategy = strategy});
      model.finalize(tessera::Sgd{.learning_rate = 0.1f});
      torch::manual_seed(4);
      for (int step = 0; step < 3; ++step) {
        model.backward(model.forward(torch::ones({4, 16})).square().sum());
        model.update();
      }
      for (const char* name : {"layers.0.weight", "layers.1.bias", "layers.2.weight"}) {
        weights.push_back(model.sharded().whole(model.parameter(name)));
      }
    });
    return weights;
  };
  for (const Strategy strategy : {Strategy::ddp, Strategy::fsdp}) {
    CHECK(train(true, strategy) == train(false, strategy));
  }
}

TEST_CASE("a_checkpointed_part_that_draws_other_numbers_again_is_an_error") {
  int run = 0;
  const auto draws = [&](const torch::Tensor& x) { return x * torch::rand({++run}).sum(); };
  const torch::Tensor y = tessera::torch::checkpoint(draws, torch::ones({8}, torch::requires_grad()));
  CHECK_THROWS_WITH_AS(y.sum().backward(), doctest::Contains("did not draw the random numbers of its first run again"),
                       tessera::UsageError);
}

using Draw = std::function<torch::Tensor(const torch::Tensor&)>;

// The draws are of different kinds: with a generator among their arguments, and without.
const std::vector<Draw> draws{[](const torch::Tensor& x) { return torch::dropout(x, 0.5, true); },
                              [](const torch::Tensor& x) { return x * torch::rand({8}); },
                              [](const torch::Tensor& x) { return x * torch::empty({8}).normal_(); },
                              [](const torch::Tensor& x) { return x.index({torch::randperm(8)}); },
                              [](const torch::Tensor& x) { return torch::rrelu(x, 0.1, 0.3, true); },
                              [](const torch::Tensor& x) { return x * torch::ones({8}).multinomial(8); }};

TEST_CASE("a_checkpointed_part_that_draws_in_one_of_its_runs_alone_is_an_error") {
  for (std::size_t kind = 0; kind < draws.size(); ++kind) {
    for (const int drawing : {1, 2}) {
      CAPTURE(kind);
      CAPTURE(drawing);
      int run = 0;
      const auto part = [&](const torch::Tensor& x) { return ++run == drawing ? draws[kind](x) : x * 1; };
      const torch::Tensor y = tessera::torch::checkpoint(part, -torch::ones({8}, torch::requires_grad()));
      CHECK_THROWS_WITH_AS(y.sum().backward(),
                           doctest::Contains(drawing == 1 ? " drew then, and 0 now" : ": 0 operators drew then, and "),
                           tessera::UsageError);
    }
  }
}

TEST_CASE("what_others_draw_does_not_count_as_a_checkpointed_parts") {
  for (const int drawing : {1, 2}) {
    CAPTURE(drawing);
    int run = 0;
    const auto part = [&](const torch::Tensor& x) {
      if (++run == drawing) std::thread([] { torch::rand({3}); }).join();
      return x * 2;
    };
    const torch::Tensor x = torch::ones({8}, torch::requires_grad());
    tessera::torch::checkpoint(part, x).sum().backward();
    CHECK(floats(x.grad()) == std::vector<float>(8, 2.0f));
  }
}

TEST_CASE("a_checkpointed_part_that_throws_again_leaves_torchs_generator_where_it_was") {
  int run = 0;
  const auto part = [&](const torch::Tensor& x) {
    const torch::Tensor y = torch::dropout(x, 0.5, true);
    if (++run == 2) throw std::runtime_error("no such sample");
    return y;
  };
  const auto state = [] { return at::globalContext().defaultGenerator(at::kCPU).get_state(); };
  const torch::Tensor y = tessera::torch::checkpoint(part, torch::ones({8}, torch::requires_grad()));
  torch::rand({5});
  const torch::Tensor before = state();
  CHECK_THROWS_WITH(y.sum().backward(), doctest::Contains("no such sample"));
  CHECK(torch::equal(state(), before));
}

TEST_CASE("checkpointed_parts_take_and_give_several_tensors") {
  const auto part = [](const std::vector<torch::Tensor>& in) -> std::vector<torch::Tensor> {
    return {in[0] * in[1], in[0].detach().argmax(), (in[1] + in[2]).exp()};
  };
  const auto gradients = [&](bool checkpoints) {
    const torch::Tensor x = torch::linspace(-1, 1, 5).requires_grad_();
    const torch::Tensor y = torch::linspace(0, 2, 5).requires_grad_();
    const std::vector<torch::Tensor> inputs{x, y, torch::ones({5})};
    const auto outputs = checkpoints ? tessera::torch::checkpoint(part, inputs) : part(inputs);
    CHECK(outputs[1].item<int>() == 4);
    (outputs[0].sum() + 3 * outputs[2].sum()).backward();
    return std::pair(floats(x.grad()), floats(y.grad()));
  };
  CHECK(gradients(true) == gradients(false));
}

}  // namespace checkpoint_test
