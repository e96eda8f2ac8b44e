// Every way to alias, read, write or replace a parameter is right, or an error that names it.
#include <future>
#include <sstream>

#include "networks.hpp"
#include "tessera/base/error.hpp"

namespace aliases_test {

using networks::floats;
using networks::Perceptron;
using tessera::Strategy;
using tessera::UsageError;
using tessera::torch::FullyShard;
namespace nn = torch::nn;

const tessera::torch::ModuleOptions blocks{.units = tessera::torch::children_of("blocks")};
const tessera::torch::ModuleOptions one_unit{.units = tessera::torch::named({})};

networks::Batch batch() { return networks::batch_of(networks::all_kinds()[0], 0, 6); }

// `act(model, net, input)` comes after a step, on one rank.
template <typename Act>
void after_a_step(Strategy strategy, const tessera::torch::ModuleOptions& options, Act act) {
  tessera::launch({.ranks = 1}, [&](tessera::World& world) {
    const auto net = tessera::torch::make_module<Perceptron>(1);
    FullyShard model(world, net, options, {.strategy = strategy});
    model.finalize(tessera::Sgd{.learning_rate = 0.1f});
    model.backward(model.forward(batch().input).square().sum());
    model.update();
    act(model, *net, batch().input);
  });
}

TEST_CASE("what_would_give_a_wrong_value_is_an_error_that_names_the_parameter") {
  using Act = std::function<void(FullyShard<Perceptron>&, Perceptron&, const torch::Tensor&)>;
  struct Case {
    const char* name;
    Act act;
    const char* words;
  };
  const std::vector<Case> cases{
      {"a view that outlives the pass",
       [](auto& model, Perceptron&, const torch::Tensor& input) {
         const torch::Tensor kept = model.pass([](Perceptron& net) { return net.first->weight.expand({2, 13, 7}); });
         CHECK(kept.sizes() == torch::IntArrayRef({2, 13, 7}));
         kept.matmul(input.t());
       },
       "was to use parameter first.weight outside of a pass"},
      {"a write",
       [](auto& model, Perceptron&, const torch::Tensor&) {
         const torch::NoGradGuard no_grad;
         model.pass([](Perceptron& net) { net.first->weight.clamp_(-0.01, 0.01); });
       },
       "aten::clamp_ was to write parameter first.weight"},
      {"memory that another tensor takes over",
       [](auto& model, Perceptron&, const torch::Tensor&) {
         model.pass([](Perceptron& net) { torch::empty({0}).set_(net.first->weight.detach()); });
       },
       "aten::set_ was to write parameter first.weight"},
      {"a gradient of the program's own",
       [](auto& model, Perceptron& net, const torch::Tensor& input) {
         model.backward(model.forward(input).sum());
         net.last->bias.mutable_grad() = torch::ones({3});
         model.update();
       },
       "mutable_grad() of last.bias"},
      {"zero_grad() of the module in front of an update",
       [](auto& model, Perceptron& net, const torch::Tensor& input) {
         model.backward(model.forward(input).sum());
         net.zero_grad();
         model.update();
       },
       "drop them by model.zero_grad()"},
      {"a write by a view",
       [](auto& model, Perceptron&, const torch::Tensor&) {
         const torch::NoGradGuard no_grad;
         model.pass([](Perceptron& net) { net.first->bias.slice(0, 1, 3).zero_(); });
       },
       "aten::zero_ was to write parameter first.bias"},
      {"a write by data()",
       [](auto& model, Perceptron&, const torch::Tensor&) {
         model.pass([](Perceptron& net) {
           net.first->weight.sum();
           net.first->weight.data().mul_(2);
         });
       },
       "aten::mul_ was to write parameter first.weight"},
      {"data() of a unit that has not opened",
       [](auto& model, Perceptron&, const torch::Tensor& input) {
         model.pass([&](Perceptron& net) {
           const torch::Tensor data = net.first->weight.data();
           net.first(input);
           return data.sum();
         });
       },
       "first.weight"},
      {"grad() behind its pass",
       [](auto& model, Perceptron&, const torch::Tensor& input) {
         const torch::Tensor x = input.clone().requires_grad_();
         torch::autograd::grad({model.forward(x).sum()}, {x});
       },
       "call torch::autograd::grad() in the pass"},
      {"loss.backward()",
       [](auto& model, Perceptron&, const torch::Tensor& input) { model.forward(input).square().sum().backward(); },
       "call model.backward(loss), not loss.backward()"},
      {"clip_grad_norm_",
       [](auto& model, Perceptron& net, const torch::Tensor& input) {
         model.backward(model.forward(input).sum());
         nn::utils::clip_grad_norm_(net.parameters(), 1.0);
       },
       "the gradient of parameter first.weight was asked for"},
      {"clip_grad_value_",
       [](auto&, Perceptron& net, const torch::Tensor&) { nn::utils::clip_grad_value_(net.parameters(), 1.0); },
       "the gradient of parameter first.weight was asked for"},
      {"an optimizer of torch's",
       [](auto& model, Perceptron& net, const torch::Tensor& input) {
         torch::optim::Adam optimizer(net.parameters(), 1e-3);
         optimizer.zero_grad();
         net.zero_grad();
         model.backward(model.forward(input).sum());
         optimizer.step();
       },
       "the gradient of parameter first.weight was asked for"},
      {"set_data() behind finalize()",
       [](auto&, Perceptron& net, const torch::Tensor&) {
         net.last->weight.set_data(torch::ones({3, 13}));
       },
       "set_data() was to write parameter last.weight"},
      {"torch::load() behind finalize()",
       [](auto&, Perceptron& net, const torch::Tensor&) {
         std::stringstream file;
         torch::save(std::make_shared<Perceptron>(), file);
         std::shared_ptr<Perceptron> same(&net, [](Perceptron*) {});
         torch::load(same, file);
       },
       "files are loaded before finalize(), or by load_weights(model.sharded(), file)"},
      {"vector_to_parameters() in a pass",
       [](auto& model, Perceptron&, const torch::Tensor&) {
         model.pass([](Perceptron& net) { nn::utils::vector_to_parameters(torch::zeros({692}), net.parameters()); });
       },
       "set_data() was to write parameter first.weight"},
      {"requires_grad between forward and backward",
       [](auto& model, Perceptron& net, const torch::Tensor& input) {
         const torch::Tensor loss = model.forward(input).sum();
         net.first->weight.set_requires_grad(false);
         model.backward(loss);
       },
       "requires_grad of parameter first.weight changed inside a step"},
      {"another unit in a hook",
       [](auto& model, Perceptron& net, const torch::Tensor& input) {
         net.last->bias.register_hook([&](const torch::Tensor& gradient) { return gradient + net.first->bias.sum(); });
         model.backward(model.forward(input).sum());
       },
       "keeps from the forward pass"},
      {"a unit on another thread",
       [](auto& model, Perceptron&, const torch::Tensor& input) {
         model.pass([&](Perceptron& net) { std::async(std::launch::async, [&] { net.first(input); }).get(); });
       },
       "uses parameter first.weight on another thread"},
      {"torch::save()",
       [](auto&, Perceptron& net, const torch::Tensor&) {
         std::stringstream file;
         torch::save(std::shared_ptr<Perceptron>(&net, [](Perceptron*) {}), file);
       },
       "was asked for, as torch::save() does"},
      {"a storage in a pass",
       [](auto& model, Perceptron&, const torch::Tensor&) {
         model.pass([](Perceptron& net) {
           net.first->bias.sum();
           torch::empty({0}).set_(net.first->bias.storage(), 0, {13}, {1});
         });
       },
       "the storage of parameter first.bias was asked for"},
      {"set_data() in a pass",
       [](auto& model, Perceptron&, const torch::Tensor&) {
         model.pass([](Perceptron& net) { net.first->weight.set_data(torch::ones({13, 7})); });
       },
       "set_data() was to write parameter first.weight"},
  };
  for (const Strategy strategy : {Strategy::ddp, Strategy::fsdp}) {
    for (const Case& each : cases) {
      CAPTURE(tessera::to_string(strategy));
      CAPTURE(each.name);
      CHECK_THROWS_WITH_AS(after_a_step(strategy, blocks, each.act), doctest::Contains(each.words), UsageError);
    }
  }
}

TEST_CASE("a_loss_that_outlives_its_model_says_so") {
  torch::Tensor loss;
  tessera::launch({.ranks = 1}, [&](tessera::World& world) {
    FullyShard model(world, std::make_shared<Perceptron>(), blocks);
    model.finalize(tessera::Sgd{});
    loss = model.forward(batch().input).square().sum();
  });
  CHECK_THROWS_WITH_AS(loss.backward(), doctest::Contains("whose FullyShard is gone"), UsageError);
}

TEST_CASE("a_graph_that_saved_a_parameter_before_an_update_is_refused_as_in_torch") {
  const auto train = [](auto& model, Perceptron&, const torch::Tensor& input) {
    const torch::Tensor x = input.clone().requires_grad_();
    torch::Tensor kept;
    model.backward(model.pass([&](Perceptron& net) {
      kept = net.first(x);
      return net.forward(input).sum();
    }));
    model.update();
    model.backward(model.forward(input).sum() + kept.sum());
  };
  for (const Strategy strategy : {Strategy::ddp, Strategy::fsdp}) {
    CHECK_THROWS_WITH(after_a_step(strategy, blocks, train),
                      doctest::Contains("has been modified by an inplace operation"));
  }
}

TEST_CASE("a_parameter_whose_memory_has_other_owners_is_an_error") {
  const auto finalize = [](const std::function<void(Perceptron&)>& change) {
    tessera::launch({.ranks = 1}, [&](tessera::World& world) {
      const auto net = std::make_shared<Perceptron>();
      FullyShard model(world, net, blocks);
      change(*net);
      model.finalize(tessera::Sgd{});
    });
  };
  torch::Tensor kept;
  CHECK_THROWS_WITH_AS(finalize([&](Perceptron& net) { kept = net.last->weight.t(); }),
                       doctest::Contains("parameter last.weight shares its memory"), UsageError);
  CHECK_THROWS_WITH_AS(finalize([&](Perceptron& net) {
                         net.blocks[1]->as<nn::Linear>()->weight.set_data(net.blocks[0]->as<nn::Linear>()->weight);
                       }),
                       doctest::Contains("parameter blocks.0.weight shares its memory"), UsageError);
  CHECK_THROWS_WITH_AS(finalize([&](Perceptron& net) { net.to(torch::kDouble); }),
                       doctest::Contains("parameter first.weight was given another type"), UsageError);
  CHECK_THROWS_WITH_AS(finalize([&](Perceptron& net) { net.forward(batch().input).sum().backward(); }),
                       doctest::Contains("parameter first.weight has a gradient from before finalize()"), UsageError);
  CHECK_THROWS_WITH_AS(finalize([&](Perceptron& net) { net.unregister_module("last"); }),
                       doctest::Contains("parameter last.weight is no more in the module"), UsageError);
  CHECK_NOTHROW(finalize([&](Perceptron& net) {
    net.forward(batch().input).sum().backward();
    net.zero_grad();
  }));
}

TEST_CASE("what_is_loaded_before_finalize_is_what_training_begins_with") {
  const auto saved = std::make_shared<Perceptron>();
  std::stringstream file;
  torch::save(saved, file);
  tessera::launch({.ranks = 2}, [&](tessera::World& world) {
    auto net = std::make_shared<Perceptron>();
    FullyShard model(world, net, blocks);
    std::stringstream mine(file.str());
    torch::load(net, mine);
    model.finalize(tessera::Sgd{});
    CHECK(model.sharded().whole(model.parameter("last.weight")) == floats(saved->last->weight));
    auto plain = std::make_shared<Perceptron>();
    model.copy_to(world.rank() == 0 ? plain.get() : nullptr);
    if (world.rank() == 0) {
      for (const auto& parameter : plain->named_parameters()) {
        CHECK(torch::equal(parameter.value(), saved->named_parameters()[parameter.key()]));
      }
    }
  });
}

TEST_CASE("grad_inside_of_a_pass_is_torchs_and_a_penalty_trains") {
  const auto loss_of = [](Perceptron& net) {
    const torch::Tensor x = batch().input.requires_grad_();
    const torch::Tensor y = net.forward(x).sum();
    const torch::Tensor slope = torch::autograd::grad({y}, {x}, {}, true, true)[0];
    return y + slope.square().sum();
  };
  const auto plain = tessera::torch::make_module<Perceptron>(1);
  loss_of(*plain).backward();
  for (const Strategy strategy : {Strategy::ddp, Strategy::fsdp}) {
    tessera::launch({.ranks = 2}, [&](tessera::World& world) {
      FullyShard model(world, tessera::torch::make_module<Perceptron>(1), one_unit, {.strategy = strategy});
      model.finalize(tessera::Sgd{.learning_rate = 0.1f});
      model.backward(model.pass(loss_of));
      model.update();
      for (const char* name : {"first.weight", "blocks.1.weight"}) {
        const torch::Tensor& parameter = plain->named_parameters()[name];
        networks::check_close(model.sharded().whole(model.parameter(name)),
                              floats(parameter.detach() - 0.1 * parameter.grad()));
      }
    });
  }
}

// The product of a user's own, whose node is made before the window of its weight opens.
struct Product : torch::autograd::Function<Product> {
  static torch::Tensor forward(torch::autograd::AutogradContext* context, const torch::Tensor& x,
                               const torch::Tensor& weight) {
    context->save_for_backward({x, weight});
    return x.mm(weight.t());
  }
  static torch::autograd::tensor_list backward(torch::autograd::AutogradContext* context,
                                               const torch::autograd::tensor_list& gradients) {
    const auto saved = context->get_saved_variables();
    return {gradients[0].mm(saved[1]), gradients[0].t().mm(saved[0])};
  }
};

struct OwnFunctions : nn::Module {
  OwnFunctions() {
    for (const char* name : {"first", "second", "third"}) layers.push_back(register_module(name, nn::Linear(3, 3)));
    layers[1]->weight.register_hook([](const torch::Tensor& gradient) { return 3 * gradient; });
  }
  torch::Tensor forward(const torch::Tensor& x) {
    torch::Tensor y = x;
    for (nn::Linear& layer : layers) y = torch::tanh(Product::apply(y, layer->weight) + layer->bias);
    return y;
  }
  std::vector<nn::Linear> layers;
};

TEST_CASE("functions_and_hooks_of_the_users_own_train_as_in_torch") {
  for (const Strategy strategy : {Strategy::ddp, Strategy::fsdp}) {
    CAPTURE(tessera::to_string(strategy));
    const auto values = std::make_shared<OwnFunctions>();
    networks::train_step(values, strategy, {}, [&](auto& model, OwnFunctions&) {
      OwnFunctions plain;
      networks::check_as_plain_step(model, *values, plain);
    });
  }
}

}  // namespace aliases_test
