// Steps that use units in another order than was learnt, and parameters that are trained from some step on.
#include <filesystem>

#include "networks.hpp"
#include "tessera/base/error.hpp"
#include "tessera/checkpoint/checkpointer.hpp"

namespace orders_test {

using networks::floats;
using tessera::Strategy;
using tessera::torch::FullyShard;
namespace nn = torch::nn;

torch::Tensor input(int step) { return torch::sin(torch::arange(15.0) * (1.3 + step)).view({5, 3}); }

// A module that goes through its parts in any order is a loop, a net of random depth, or one with branches.
struct Parts : nn::Module {
  Parts() {
    norm = register_module("norm", nn::BatchNorm1d(3));
    for (int i = 0; i < 3; ++i) parts->push_back(nn::Linear(3, 3));
    register_module("parts", parts);
  }
  torch::Tensor forward(torch::Tensor x, const std::vector<std::size_t>& order) {
    x = norm(x);
    for (const std::size_t part : order) x = torch::tanh(parts[part]->as<nn::Linear>()->forward(x));
    return x;
  }
  nn::BatchNorm1d norm{nullptr};
  nn::ModuleList parts;
};

using Body = std::function<torch::Tensor(Parts&)>;
using Pass = std::function<torch::Tensor(const Body&)>;

// A step gives its loss, by passes; `change` comes in front of it.
struct Steps {
  int count;
  std::function<torch::Tensor(const Pass& pass, int step)> loss;
  std::function<void(Parts&, int step)> change = [](Parts&, int) {};  // -1: before training
};

// The same optimizer of torch's and of the runtime's.
struct Optimizers {
  std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<torch::Tensor>)> torchs;
  std::function<void(FullyShard<Parts>&)> finalize;
};
const tessera::Sgd sgd{.learning_rate = 0.02f, .momentum = 0.9f};
const Optimizers by_sgd{[](auto parameters) {
                          const auto options = torch::optim::SGDOptions(0.02).momentum(0.9);
                          return std::make_unique<torch::optim::SGD>(std::move(parameters), options);
                        },
                        [](auto& model) { model.finalize(sgd); }};
const Optimizers by_adamw{
    [](auto parameters) {
      const auto options = torch::optim::AdamWOptions(0.01).weight_decay(0.1);
      return std::make_unique<torch::optim::AdamW>(std::move(parameters), options);
    },
    [](auto& model) { model.finalize(tessera::AdamW{.learning_rate = 0.01f, .weight_decay = 0.1f}); }};

// Gradients that do not come are zero, as they are with several ranks.
std::shared_ptr<Parts> trained_plainly(const Steps& steps, const Optimizers& by = by_sgd) {
  const auto net = tessera::torch::make_module<Parts>(1);
  steps.change(*net, -1);
  const auto optimizer = by.torchs(net->parameters());
  for (int step = 0; step < steps.count; ++step) {
    steps.change(*net, step);
    for (auto& parameter : net->parameters()) {
      parameter.mutable_grad() = parameter.requires_grad() ? torch::zeros_like(parameter) : torch::Tensor();
    }
    steps.loss([&](const Body& body) { return body(*net); }, step).backward();
    optimizer->step();
  }
  return net;
}

const tessera::torch::ModuleOptions units{.units = tessera::torch::children_of("parts"), .may_be_unused = {"parts.*"}};

void train(FullyShard<Parts>& model, Parts& net, const Steps& steps, int from = 0) {
  for (int step = from; step < steps.count; ++step) {
    steps.change(net, step);
    model.backward(steps.loss([&](const Body& body) { return model.pass(body); }, step));
    model.update();
  }
}

void check_as(FullyShard<Parts>& model, const Parts& plain) {
  for (const auto& parameter : plain.named_parameters()) {
    CAPTURE(parameter.key());
    networks::check_close(model.sharded().whole(model.parameter(parameter.key())), floats(parameter.value()));
  }
  const auto copy = std::make_shared<Parts>();
  model.copy_to(copy.get());
  for (const auto& buffer : plain.named_buffers()) {
    networks::check_close(floats(copy->named_buffers()[buffer.key()]), floats(buffer.value()));
  }
}

// On ranks that all compute the same. Returns the plan's forward windows.
std::size_t check_as_plain(const Steps& steps, const Optimizers& by = by_sgd) {
  const auto plain = trained_plainly(steps, by);
  std::size_t windows = 0;
  for (const Strategy strategy : {Strategy::ddp, Strategy::fsdp}) {
    for (const int ranks : {1, 2}) {
      tessera::launch({.ranks = ranks}, [&](tessera::World& world) {
        const auto net = tessera::torch::make_module<Parts>(1);
        steps.change(*net, -1);
        FullyShard model(world, net, units, {.strategy = strategy});
        by.finalize(model);
        train(model, *net, steps);
        check_as(model, *plain);
        if (world.rank() == 0) windows = model.sharded().plan().programs.front().micro_batch.size() / 2;
      });
    }
  }
  return windows;
}

Steps through(std::vector<std::vector<std::size_t>> orders) {
  return {.count = static_cast<int>(orders.size()), .loss = [orders](const Pass& pass, int step) {
            const auto& order = orders[static_cast<std::size_t>(step)];
            return (pass([&](Parts& net) { return net.forward(input(step), order); }) - input(7)).square().sum();
          }};
}

// Plans are for an order that all are part of, so each is learnt once; the norm comes first.
TEST_CASE("steps_go_through_units_in_any_order") {
  CHECK(check_as_plain(through({{0, 1, 2}, {0, 1, 2}})) == 4);
  CHECK(check_as_plain(through({{0, 1}, {0, 1, 0, 1, 0, 1}, {0, 1, 0, 1}, {0, 1}})) == 8);
  CHECK(check_as_plain(through({{2, 1, 0}, {0, 2}, {2, 0}, {0}, {1, 0, 2}, {0, 1, 2}})) == 7);
}
TEST_CASE("passes_that_are_thrown_away_and_evaluations_come_anywhere") {
  check_as_plain({.count = 4, .loss = [](const Pass& pass, int step) {
                    if (step > 1) pass([&](Parts& net) { return net.parts[0]->as<nn::Linear>()->forward(input(0)); });
                    if (step > 1) pass([&](Parts& net) { return net.parts[0]->as<nn::Linear>()->forward(input(0)); });
                    const auto forward = [&](Parts& net) { return net.forward(input(step), {2, 0}); };
                    const torch::Tensor y = pass(forward);
                    torch::Tensor target;
                    {
                      const torch::NoGradGuard no_graph;
                      target = pass([&](Parts& net) { return net.parts[1]->as<nn::Linear>()->forward(input(1)); });
                    }
                    return (y - target).square().sum() + pass(forward).sum();
                  }});
}

// Only its first micro-batch can bring a step another order.
TEST_CASE("another_order_amid_a_step_is_an_error_that_names_unit_cause_and_remedy") {
  const Steps steps = through({{0, 1, 2}, {2, 0, 1}});
  CHECK_THROWS_WITH_AS(
      tessera::launch({.ranks = 1},
                      [&](tessera::World& world) {
                        FullyShard model(world, tessera::torch::make_module<Parts>(1), units, {.micro_batches = 2});
                        model.finalize(sgd);
                        for (const int step : {0, 1}) {
                          model.backward(steps.loss([&](const Body& body) { return model.pass(body); }, step));
                        }
                      }),
      doctest::Contains("unit parts.0 was opened out of order, where the step has had other micro-batches, so that no "
                        "other order can be learnt in it: show the longest pass to model.learn()"),
      tessera::UsageError);
}

// A part of a unit and a whole one are trained later, and another no more; the norm has buffers.
Steps thawing() {
  Steps steps = through(std::vector<std::vector<std::size_t>>(7, {0, 1, 2}));
  steps.change = [](Parts& net, int step) {
    const auto set = [&](std::size_t part, bool trains) {
      for (auto& parameter : net.parts[part]->parameters()) parameter.set_requires_grad(trains);
    };
    if (step == -1) net.parts[0]->as<nn::Linear>()->bias.set_requires_grad(false), set(1, false);
    if (step == 3) set(0, true), set(1, true);
    if (step == 5) set(2, false);
  };
  return steps;
}

TEST_CASE("parameters_are_trained_from_the_step_on_that_turns_their_gradients_on") {
  check_as_plain(thawing());
  check_as_plain(thawing(), by_adamw);
}

TEST_CASE("checkpoints_from_before_and_after_a_thaw_go_on_with_the_same_values") {
  const auto folder = std::filesystem::temp_directory_path() / "tessera_thaw";
  const auto plain = trained_plainly(thawing());
  for (const int from : {2, 4}) {
    std::filesystem::remove_all(folder);
    for (const bool resumes : {false, true}) {
      tessera::launch({.ranks = 2}, [&](tessera::World& world) {
        Steps steps = thawing();
        const auto net = tessera::torch::make_module<Parts>(1);
        for (int step = -1; step < (resumes ? from : 0); ++step) steps.change(*net, step);
        FullyShard model(world, net, units, {.checkpointing = tessera::Checkpointing::blocking});
        model.finalize(sgd);
        tessera::Checkpointer checkpointer(model.sharded(), {.directory = folder});
        if (resumes) {
          checkpointer.load(checkpointer.latest()->path);
          train(model, *net, steps, from);
          check_as(model, *plain);
        } else {
          steps.count = from;
          train(model, *net, steps);
          checkpointer.save({.step = static_cast<std::uint64_t>(from)});
        }
      });
    }
  }
  std::filesystem::remove_all(folder);
}

TEST_CASE("what_was_trained_before_it_was_frozen_is_not_trained_again") {
  Steps steps = thawing();
  steps.change = [](Parts& net, int step) { net.norm->bias.set_requires_grad(step != 1); };
  CHECK_THROWS_WITH_AS(check_as_plain(steps),
                       doctest::Contains("requires_grad of parameter norm.bias was turned off and on again"),
                       tessera::UsageError);
}

}  // namespace orders_test
