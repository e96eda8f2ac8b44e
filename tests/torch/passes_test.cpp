// Passes inside each other, under torch::InferenceMode, and what an exception leaves.
#include <c10/core/InferenceMode.h>

#include <cmath>
#include <stdexcept>

#include "networks.hpp"
#include "tessera/base/error.hpp"

namespace passes_test {

using networks::floats;
using networks::Perceptron;
using tessera::Strategy;
using tessera::UsageError;
using tessera::torch::FullyShard;

const tessera::torch::ModuleOptions blocks{.units = tessera::torch::children_of("blocks")};

networks::Batch batch() { return networks::batch_of(networks::all_kinds()[0], 0, 6); }

// The weights after two steps of SGD, each of which `step(model, input)` does up to its update.
template <typename Step>
std::vector<float> trained(Strategy strategy, Step step) {
  std::vector<float> weights;
  tessera::launch({.ranks = 2}, [&](tessera::World& world) {
    FullyShard model(world, tessera::torch::make_module<Perceptron>(1), blocks, {.strategy = strategy});
    model.finalize(tessera::Sgd{.learning_rate = 0.1f});
    for (int i = 0; i < 2; ++i) {
      step(model, batch().input);
      model.update();
    }
    const auto first = model.sharded().whole(model.parameter("first.weight"));
    const auto last = model.sharded().whole(model.parameter("last.weight"));
    if (world.rank() != 0) return;
    weights = first;
    weights.insert(weights.end(), last.begin(), last.end());
  });
  return weights;
}

void plain_step(FullyShard<Perceptron>& model, const torch::Tensor& input) {
  model.backward((model.forward(input) * 2).square().sum());
}

TEST_CASE("a_pass_inside_another_is_part_of_it") {
  for (const Strategy strategy : {Strategy::ddp, Strategy::fsdp}) {
    CAPTURE(tessera::to_string(strategy));
    // The last layer by itself comes behind the inner passes, in the outer one.
    const auto by_parts = [](FullyShard<Perceptron>& model, const torch::Tensor& input) {
      const torch::Tensor scores = model.pass([&](Perceptron& net) {
        torch::Tensor x = torch::tanh(model.pass([&](Perceptron&) { return net.first(input); }));
        for (const auto& block : *net.blocks) x = x + torch::tanh(block->as<torch::nn::Linear>()->forward(x));
        return net.last(model.pass([&](Perceptron&) { return x * 1; }));
      });
      model.backward((scores * 2).square().sum());
    };
    const auto by_expression = [](FullyShard<Perceptron>& model, const torch::Tensor& input) {
      model.backward(
          (model.pass([&](Perceptron&) { return model->forward(model.pass([&](Perceptron&) { return input * 1; })); }) *
           2)
              .square()
              .sum());
    };
    const std::vector<float> expected = trained(strategy, plain_step);
    CHECK(trained(strategy, by_parts) == expected);
    CHECK(trained(strategy, by_expression) == expected);
  }
}

TEST_CASE("backward_and_update_end_the_passes_that_are_open") {
  const auto inside = [](FullyShard<Perceptron>& model, const torch::Tensor& input) {
    model.pass([&](Perceptron& net) {
      model.pass([&](Perceptron&) { plain_step(model, input); });
      CHECK_THROWS_WITH_AS(net.last->weight.norm(), doctest::Contains("outside of a pass"), UsageError);
    });
  };
  CHECK(trained(Strategy::fsdp, inside) == trained(Strategy::fsdp, plain_step));
}

TEST_CASE("a_pass_with_gradients_inside_an_evaluation_pass_is_an_error") {
  const auto mixed = [](FullyShard<Perceptron>& model, const torch::Tensor& input) {
    const torch::NoGradGuard no_grad;
    model.pass([&](Perceptron&) {
      const torch::AutoGradMode with_graph(true);
      plain_step(model, input);
    });
  };
  CHECK_THROWS_WITH_AS(trained(Strategy::fsdp, mixed),
                       doctest::Contains("a pass with gradients began inside an evaluation pass"), tessera::Error);
}

TEST_CASE("passes_of_two_models_go_inside_each_other") {
  const auto distil = [](bool inside) {
    std::vector<float> weights;
    tessera::launch({.ranks = 2}, [&](tessera::World& world) {
      FullyShard student(world, tessera::torch::make_module<Perceptron>(1), blocks);
      FullyShard teacher(world, tessera::torch::make_module<Perceptron>(2), blocks);
      student.finalize(tessera::Sgd{.learning_rate = 0.1f});
      teacher.finalize(tessera::Sgd{.learning_rate = 0.1f});
      const torch::Tensor input = batch().input;
      const auto taught = [&] {
        const torch::NoGradGuard no_grad;
        return teacher.forward(input);
      };
      const torch::Tensor before = taught();
      const torch::Tensor scores = student.pass([&](Perceptron& net) {
        const torch::Tensor x = net.first(input);
        const torch::Tensor now = inside ? taught() : before;
        torch::Tensor y = torch::tanh(x);
        for (const auto& block : *net.blocks) y = y + torch::tanh(block->as<torch::nn::Linear>()->forward(y));
        return net.last(y) - now;
      });
      student.backward(scores.square().sum());
      student.update();
      const auto whole = student.sharded().whole(student.parameter("first.weight"));
      if (world.rank() == 0) weights = whole;
    });
    return weights;
  };
  CHECK(distil(true) == distil(false));
}

// Its faces of parameters are the ones that training shows later.
TEST_CASE("evaluation_under_inference_mode_leaves_training_as_it_is") {
  for (const Strategy strategy : {Strategy::ddp, Strategy::fsdp}) {
    CAPTURE(tessera::to_string(strategy));
    const auto evaluates = [](FullyShard<Perceptron>& model, const torch::Tensor& input) {
      {
        const c10::InferenceMode inference;
        model.forward(input);
      }
      plain_step(model, input);
    };
    CHECK(trained(strategy, evaluates) == trained(strategy, plain_step));
  }
}

TEST_CASE("a_model_that_is_made_under_inference_mode_trains") {
  tessera::launch({.ranks = 1}, [](tessera::World& world) {
    const auto net = std::make_shared<networks::Convolutions>();
    const auto before = floats(net->named_parameters()["layers.linear.weight"]);
    const networks::Batch images = networks::batch_of(networks::all_kinds()[1], 0, 4);
    {
      std::optional<FullyShard<networks::Convolutions>> model;
      {
        const c10::InferenceMode inference;
        model.emplace(world, net, tessera::torch::ModuleOptions{.units = tessera::torch::children_of("layers")});
        model->finalize(tessera::Sgd{.learning_rate = 0.1f});
      }
      model->backward(model->forward(images.input).square().sum());
      model->update();
      CHECK(model->sharded().whole(model->parameter("layers.linear.weight")) != before);
    }
    CHECK(!net->named_buffers()["layers.norm.running_mean"].is_inference());
  });
}

TEST_CASE("after_an_exception_that_came_before_any_unit_the_model_goes_on") {
  const auto caught = [](FullyShard<Perceptron>& model, const torch::Tensor& input) {
    const auto no_sample = [](const Perceptron&) -> torch::Tensor { throw std::runtime_error("no such sample"); };
    CHECK_THROWS_AS(no_sample(*model.operator->()), std::runtime_error);
    {
      const torch::NoGradGuard no_grad;
      CHECK_THROWS_AS(no_sample(*model.operator->()), std::runtime_error);
    }
    plain_step(model, input);
  };
  CHECK(trained(Strategy::fsdp, caught) == trained(Strategy::fsdp, plain_step));
}

TEST_CASE("after_an_exception_amid_units_the_model_says_so") {
  for (const bool trains : {false, true}) {
    const auto caught = [&](FullyShard<Perceptron>& model, const torch::Tensor& input) {
      {
        const at::AutoGradMode mode(trains);
        CHECK_THROWS_AS(model->forward(torch::ones({1, 3})), c10::Error);
      }
      for (const auto& next : std::vector<std::function<void()>>{[&] { model.forward(input); }, [&] { model.update(); },
                                                                 [&] { model.backward(input.sum()); }}) {
        CHECK_THROWS_WITH_AS(next(), doctest::Contains("an exception ended an earlier pass amid its units"),
                             UsageError);
      }
      throw std::runtime_error("enough");
    };
    CHECK_THROWS_WITH(trained(Strategy::fsdp, caught), doctest::Contains("enough"));
  }
}

TEST_CASE("parts_are_evaluated_alone_and_in_any_order") {
  for (const Strategy strategy : {Strategy::ddp, Strategy::fsdp}) {
    tessera::launch({.ranks = 2}, [&](tessera::World& world) {
      const auto plain = tessera::torch::make_module<Perceptron>(1);
      FullyShard model(world, tessera::torch::make_module<Perceptron>(1), blocks, {.strategy = strategy});
      model.finalize(tessera::Sgd{.learning_rate = 0.1f});
      const torch::Tensor ones = torch::ones({2, 13});
      const auto turns = [&](Perceptron& net) {
        const torch::Tensor late = net.last(net.blocks[2]->as<torch::nn::Linear>()->forward(ones));
        return torch::cat({late, net.last(net.first(batch().input.narrow(0, 0, 2)))});
      };
      {
        const torch::NoGradGuard no_grad;
        CHECK(torch::equal(model->last(ones), plain->last(ones)));
        CHECK(torch::equal(model.pass(turns), turns(*plain)));
      }
      plain_step(model, batch().input);
      model.update();
      const torch::NoGradGuard no_grad;
      CHECK(!torch::equal(model->last(ones), plain->last(ones)));
    });
  }
}

// Rank 1 leaves the first block out, and nobody uses the last one.
TEST_CASE("passes_leave_units_out_that_may_be_unused") {
  const auto pass = [](Perceptron& net, bool all) {
    torch::Tensor x = torch::tanh(net.first(batch().input));
    for (const std::size_t i : {0, 1}) {
      if (all || i == 1) x = x + torch::tanh(net.blocks[i]->as<torch::nn::Linear>()->forward(x));
    }
    return net.last(x).square().sum();
  };
  const auto plain = tessera::torch::make_module<Perceptron>(1);
  ((pass(*plain, true) + pass(*plain, false)) / 2).backward();
  for (const Strategy strategy : {Strategy::ddp, Strategy::fsdp}) {
    tessera::launch({.ranks = 2}, [&](tessera::World& world) {
      tessera::torch::ModuleOptions options = blocks;
      options.may_be_unused = {"blocks.0.*", "blocks.2.*"};
      FullyShard model(world, tessera::torch::make_module<Perceptron>(1), options, {.strategy = strategy});
      model.finalize(tessera::Sgd{.learning_rate = 0.1f});
      model.backward(model.pass([&](Perceptron& net) { return pass(net, world.rank() == 0); }));
      model.update();
      for (const auto& parameter : plain->named_parameters()) {
        const torch::Tensor gradient = parameter.value().grad();
        networks::check_close(
            model.sharded().whole(model.parameter(parameter.key())),
            floats(gradient.defined() ? parameter.value().detach() - 0.1 * gradient : parameter.value()));
      }
    });
  }
}

TEST_CASE("a_pass_that_is_thrown_away_leaves_no_trace") {
  for (const Strategy strategy : {Strategy::ddp, Strategy::fsdp}) {
    CAPTURE(tessera::to_string(strategy));
    const std::vector<float> expected = trained(strategy, plain_step);
    CHECK(trained(strategy, [](FullyShard<Perceptron>& model, const torch::Tensor& input) {
            model.forward(input).sum();
            model.pass([&](Perceptron& net) { return net.first(input); });
            plain_step(model, input);
          }) == expected);
    CHECK(trained(strategy, [](FullyShard<Perceptron>& model, const torch::Tensor& input) {
            const torch::Tensor kept = model.forward(input);
            model.zero_grad();
            plain_step(model, 3 * input);
            model.zero_grad();
            plain_step(model, 3 * input);
            model->zero_grad();  // the module's
            const torch::Tensor scores = model.forward(input) * 2;
            model->zero_grad();
            model.backward(scores.square().sum());
          }) == expected);
  }
}

// A step of the generator, through the discriminator, whose gradients are dropped, and one of the discriminator.
TEST_CASE("a_loss_comes_through_two_models") {
  const auto adversary = [](const torch::Tensor& scores) { return torch::tanh(scores).square().sum(); };
  const auto made = tessera::torch::make_module<torch::nn::LinearImpl>(1, 3, 7);
  const auto judge = tessera::torch::make_module<Perceptron>(2);
  const torch::Tensor noise = torch::linspace(-1, 1, 6).view({2, 3});
  adversary(judge->forward(made->forward(noise))).backward();
  const torch::Tensor expected = made->weight.detach() - 0.1 * made->weight.grad();
  judge->zero_grad();
  adversary(judge->forward(batch().input)).backward();
  for (const Strategy strategy : {Strategy::ddp, Strategy::fsdp}) {
    tessera::launch({.ranks = 2}, [&](tessera::World& world) {
      FullyShard generator(world, tessera::torch::make_module<torch::nn::LinearImpl>(1, 3, 7), {},
                           {.strategy = strategy});
      FullyShard discriminator(world, tessera::torch::make_module<Perceptron>(2), blocks, {.strategy = strategy});
      generator.finalize(tessera::Sgd{.learning_rate = 0.1f});
      discriminator.finalize(tessera::Sgd{.learning_rate = 0.1f});
      generator.backward(adversary(discriminator.forward(generator.forward(noise))));
      generator.update();
      discriminator.zero_grad();
      discriminator.backward(adversary(discriminator.forward(batch().input)));
      discriminator.update();
      networks::check_close(generator.sharded().whole(generator.parameter("weight")), floats(expected));
      networks::check_close(discriminator.sharded().whole(discriminator.parameter("last.weight")),
                            floats(judge->last->weight.detach() - 0.1 * judge->last->weight.grad()));
    });
  }
}

TEST_CASE("a_rule_for_units_keeps_batch_norms_in_fp32") {
  tessera::launch({.ranks = 2}, [](tessera::World& world) {
    const auto net = tessera::torch::make_module<networks::Convolutions>(1);
    FullyShard model(world, net,
                     {.units = tessera::torch::children_of("layers"),
                      .per_unit = {{"*.norm", {.precision = tessera::fp32_precision}}}},
                     {.precision = tessera::bf16_mixed});
    model.finalize(tessera::Sgd{.learning_rate = 0.1f});
    const torch::Tensor images = networks::batch_of(networks::all_kinds()[1], 0, 4).input.to(torch::kBFloat16);
    model.backward(model.forward(images).square().sum());
    model.update();
    CHECK(std::isfinite(model.last_step().gradient_norm));
    CHECK((net->named_parameters()["layers.norm.weight"].scalar_type() == torch::kFloat));
    CHECK((net->named_parameters()["layers.linear.weight"].scalar_type() == torch::kBFloat16));
  });
}

// Only backward() knows when a unit's parameters are there: torch::autograd::grad() does not.
TEST_CASE("inputs_get_gradients_by_the_models_backward_pass") {
  for (const Strategy strategy : {Strategy::ddp, Strategy::fsdp}) {
    tessera::launch({.ranks = 2}, [&](tessera::World& world) {
      const auto net = tessera::torch::make_module<Perceptron>(1);
      const auto plain = tessera::torch::make_module<Perceptron>(1);
      FullyShard model(world, net, blocks, {.strategy = strategy});
      model.finalize(tessera::Sgd{.learning_rate = 0.1f});
      const torch::Tensor input = batch().input.requires_grad_();
      const auto expected = ::torch::autograd::grad({plain->forward(input).square().sum()}, {input})[0];
      model.backward(model.forward(input).square().sum());
      CHECK(torch::equal(input.grad(), expected));
    });
  }
}

}  // namespace passes_test
