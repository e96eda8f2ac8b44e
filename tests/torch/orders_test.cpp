// Steps that use units in another order than was learnt, and parameters that are trained from some step on.
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

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

// A micro-batch gives its loss, by passes; they are counted on from step to step. `change` comes in front of a step.
struct Steps {
  int count;
  std::function<torch::Tensor(const Pass& pass, int micro_batch)> loss;
  std::function<void(Parts&, int step)> change = [](Parts&, int) {};  // -1: before training
  int micro_batches = 1;                                              // of a step
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
    for (int m = 0; m < steps.micro_batches; ++m) {
      const Pass pass = [&](const Body& body) { return body(*net); };
      (steps.loss(pass, step * steps.micro_batches + m) / steps.micro_batches).backward();
    }
    optimizer->step();
  }
  return net;
}

const tessera::torch::ModuleOptions units{.units = tessera::torch::children_of("parts"), .may_be_unused = {"parts.*"}};

void train(FullyShard<Parts>& model, Parts& net, const Steps& steps, int from = 0) {
  for (int step = from; step < steps.count; ++step) {
    steps.change(net, step);
    for (int m = 0; m < steps.micro_batches; ++m) {
      const Pass pass = [&](const Body& body) { return model.pass(body); };
      model.backward(steps.loss(pass, step * steps.micro_batches + m));
    }
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

// On ranks that all compute the same, with equal bits of strategies that sum alike. Returns the plan's forward windows.
std::size_t check_as_plain(const Steps& steps, const Optimizers& by = by_sgd) {
  const auto plain = trained_plainly(steps, by);
  std::size_t windows = 0;
  for (const int ranks : {1, 2, 3}) {
    std::map<std::string, std::vector<float>> first;
    for (const Strategy strategy : {Strategy::ddp, Strategy::zero2, Strategy::fsdp}) {
      CAPTURE(tessera::to_string(strategy));
      CAPTURE(ranks);
      const auto sums = ranks == 2 ? tessera::AccumulationMode::local : tessera::AccumulationMode::reduced;
      tessera::launch({.ranks = ranks}, [&](tessera::World& world) {
        const auto net = tessera::torch::make_module<Parts>(1);
        steps.change(*net, -1);
        FullyShard model(world, net, units,
                         {.strategy = strategy,
                          .micro_batches = static_cast<std::size_t>(steps.micro_batches),
                          .accumulation = sums});
        by.finalize(model);
        train(model, *net, steps);
        check_as(model, *plain);
        for (const auto& parameter : plain->named_parameters()) {
          const std::vector<float> values = model.sharded().whole(model.parameter(parameter.key()));
          if (world.rank() == 0) CHECK(first.try_emplace(parameter.key(), values).first->second == values);
        }
        if (world.rank() == 0) windows = model.sharded().plan().programs.front().micro_batch.size() / 2;
      });
    }
  }
  return windows;
}

// An order for each micro-batch.
Steps through(std::vector<std::vector<std::size_t>> orders, int micro_batches = 1) {
  return {
      .count = static_cast<int>(orders.size()) / micro_batches,
      .loss =
          [orders](const Pass& pass, int micro_batch) {
            const auto& order = orders[static_cast<std::size_t>(micro_batch)];
            return (pass([&](Parts& net) { return net.forward(input(micro_batch), order); }) - input(7)).square().sum();
          },
      .micro_batches = micro_batches};
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

TEST_CASE("micro_batches_behind_the_first_bring_other_orders") {
  CHECK(check_as_plain(through({{0, 1, 2}, {2, 0}, {0, 1}, {0, 1, 2}}, 2)) == 5);
  CHECK(check_as_plain(through({{0, 1}, {1, 2}, {2, 1, 0}, {0}, {1, 0, 2}, {2, 2}}, 3)) > 4);
}
TEST_CASE("evaluations_come_between_the_micro_batches_of_a_step_and_inside_them") {
  for (const bool inside : {false, true}) {
    Steps steps = through({{0, 1, 2}, {0, 1, 2}, {0, 1, 2}, {2, 0}, {0, 1, 2}, {1}}, 3);
    steps.loss = [loss = steps.loss, inside](const Pass& pass, int micro_batch) {
      const auto evaluated = [&] {
        const torch::NoGradGuard no_graph;
        return pass([&](Parts& net) { return torch::tanh(net.forward(input(1), {1, 0})).sum(); });
      };
      const torch::Tensor before = micro_batch % 3 == 1 ? evaluated() : torch::ones({});
      const torch::Tensor result = loss(pass, micro_batch);
      return result * before * (inside && micro_batch % 3 != 1 ? evaluated() : torch::ones({}));
    };
    check_as_plain(steps);
  }
}

// It counts as a micro-batch whose gradient is zero.
TEST_CASE("a_pass_of_another_order_is_thrown_away_amid_a_step") {
  const Steps steps = through({{0, 1, 2}, {2, 0}, {0, 1, 2}, {0, 1, 2}}, 4);
  Steps plainly = steps;
  plainly.loss = [&](const Pass& pass, int micro_batch) {
    const torch::Tensor loss = steps.loss(pass, micro_batch);
    return micro_batch == 1 ? 0 * loss : loss;
  };
  const auto plain = trained_plainly(plainly);
  tessera::launch({.ranks = 2}, [&](tessera::World& world) {
    FullyShard model(world, tessera::torch::make_module<Parts>(1), units, {.micro_batches = 4});
    model.finalize(sgd);
    const Pass pass = [&](const Body& body) { return model.pass(body); };
    for (int m = 0; m < 4; ++m) {
      const torch::Tensor loss = steps.loss(pass, m);
      if (m != 1) model.backward(loss);
    }
    model.update();
    check_as(model, *plain);
  });
}

// Hooks do not see partial sums, nor does a step that ends early count what it had twice.
TEST_CASE("what_a_step_had_before_another_order_counts_once_in_hooks_and_in_steps_that_end_early") {
  const Steps steps = through({{0, 1, 2}, {2, 0, 1}, {0, 1, 2}, {0}}, 4);
  for (const bool early : {false, true}) {
    Steps plainly = steps;
    plainly.count = 1;
    plainly.micro_batches = early ? 3 : 4;
    // A dropped pass has moved the norm's moments.
    plainly.change = [&](Parts& net, int step) {
      const Pass pass = [&](const Body& body) { return body(net); };
      for (int m = 0; m < 2 && step == -1; ++m) steps.loss(pass, m);
    };
    const auto plain = trained_plainly(plainly);
    int hooks = 0;
    tessera::launch({.ranks = 1}, [&](tessera::World& world) {
      FullyShard model(world, tessera::torch::make_module<Parts>(1), units, {.micro_batches = 4});
      model.sharded().on_reduced_gradient([&](const tessera::ReducedGradient&) { ++hooks; });
      model.finalize(sgd);
      const Pass pass = [&](const Body& body) { return model.pass(body); };
      const auto evaluate = [&] {
        const torch::NoGradGuard no_graph;
        model.pass([](Parts& net) { return net.parts[1]->as<nn::Linear>()->forward(input(1)); });
      };
      // Gradients that are dropped, of a step that had another order, too, are gone.
      for (const int micro_batch : {0, 1}) model.backward(steps.loss(pass, micro_batch) * 3);
      evaluate();
      model.zero_grad();
      for (int m = 0; m < plainly.micro_batches; ++m) {
        model.backward(steps.loss(pass, m));
        if (m == 1 || m == 3) evaluate();
      }
      model.update();
      check_as(model, *plain);
      CHECK(model.last_step().updates == 1);
    });
    CHECK(hooks == 4);
  }
}

TEST_CASE("another_order_behind_other_granules_is_an_error_that_names_unit_cause_and_remedy") {
  const Steps steps = through({{0, 1, 2}, {2, 0, 1}});
  CHECK_THROWS_WITH_AS(
      tessera::launch({.ranks = 1},
                      [&](tessera::World& world) {
                        tessera::torch::ModuleOptions options = units;
                        options.own_buffers = {"*"};
                        FullyShard model(world, tessera::torch::make_module<Parts>(1), options, {.granules = 2});
                        model.finalize(sgd);
                        for (const int step : {0, 1}) {
                          model.backward(steps.loss([&](const Body& body) { return model.pass(body); }, step));
                        }
                      }),
      doctest::Contains(
          "unit parts.0 was opened out of order, behind other granules of the step, whose sum begun would "
          "lose its bits outside of the plan: show the longest pass to model.learn()"),
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

// States wait while a parameter is frozen, also where others of its unit train on.
TEST_CASE("what_was_trained_before_it_was_frozen_goes_on_with_its_states") {
  Steps steps = thawing();
  steps.count = 9;
  steps.loss = [](const Pass& pass, int step) {
    return pass([&](Parts& net) { return net.forward(input(step), {0, 1, 2}); }).square().sum();
  };
  steps.change = [](Parts& net, int step) {
    net.norm->bias.set_requires_grad(step != 2 && step != 3 && step != 6);
    for (auto& parameter : net.parts[1]->parameters()) parameter.set_requires_grad(step < 2 || step == 5 || step > 6);
    net.parts[2]->as<nn::Linear>()->weight.set_requires_grad(step > 0 && step % 3 != 0);
  };
  check_as_plain(steps);
  check_as_plain(steps, by_adamw);
}

TEST_CASE("a_checkpoint_that_lacks_states_that_wait_says_so_once") {
  const auto folder = std::filesystem::temp_directory_path() / "tessera_waiting";
  std::filesystem::remove_all(folder);
  tessera::launch({.ranks = 2, .log_dir = folder / "logs"}, [&](tessera::World& world) {
    Steps steps = through(std::vector<std::vector<std::size_t>>(5, {0, 1, 2}));
    steps.change = [](Parts& net, int step) { net.norm->bias.set_requires_grad(step != 3); };
    const auto net = tessera::torch::make_module<Parts>(1);
    FullyShard model(world, net, units, {.checkpointing = tessera::Checkpointing::blocking});
    model.finalize(sgd);
    tessera::Checkpointer checkpointer(model.sharded(), {.directory = folder});
    for (int step = 0; step < 5; ++step) {
      Steps until = steps;
      until.count = step + 1;
      train(model, *net, until, step);
      for (int saves = 0; saves < 2; ++saves) {
        checkpointer.save({.step = static_cast<std::uint64_t>(2 * step + saves)});
      }
      CHECK(model.sharded().waiting().size() == (step == 3 ? 1 : 0));
    }
  });
  std::stringstream said;
  said << std::ifstream(folder / "logs" / "rank-0.log").rdbuf();
  const std::string text = "parameter norm.bias was frozen when it had been trained";
  CHECK(said.str().find(text) != std::string::npos);
  CHECK(said.str().find(text) == said.str().rfind(text));
  std::filesystem::remove_all(folder);
}

}  // namespace orders_test
