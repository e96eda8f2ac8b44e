// Every way to alias, write or replace a buffer is right, or an error that names it.
#include "networks.hpp"
#include "tessera/base/error.hpp"

namespace buffers_test {

using networks::floats;
using tessera::UsageError;
using tessera::torch::FullyShard;
namespace nn = torch::nn;

struct Masked : nn::Module {
  Masked() {
    layer = register_module("layer", nn::Linear(3, 3));
    mask = register_buffer("mask", torch::full({3}, 2.0f));
    counts = register_buffer("counts", torch::zeros({2}, torch::kLong));
  }
  torch::Tensor forward(const torch::Tensor& x) { return layer(x) * mask; }
  nn::Linear layer{nullptr};
  torch::Tensor mask;
  torch::Tensor counts;
};

using Model = FullyShard<Masked>;

// Returns the values that a checkpoint would have.
std::vector<float> saved(Model& model, const std::string& name) {
  for (std::size_t i = 0; i < model.sharded().unit_count(); ++i) {
    for (const tessera::Buffer* buffer : model.sharded().unit(i).buffers()) {
      if (buffer->name() != name) continue;
      const std::span<float> values = model.sharded().buffer(*buffer);
      return {values.begin(), values.end()};
    }
  }
  return {};
}

// `early` comes between the constructor and finalize(), `late` behind that.
void with_model(const std::function<void(Masked&)>& early, const std::function<void(Model&, Masked&)>& late) {
  tessera::launch({.ranks = 1}, [&](tessera::World& world) {
    const auto net = std::make_shared<Masked>();
    Model model(world, net);
    early(*net);
    model.finalize(tessera::Sgd{});
    late(model, *net);
  });
}

const auto nothing = [](Masked&) {};

TEST_CASE("memory_that_a_buffer_is_given_counts_and_is_saved") {
  const auto give = [](Masked& net) {
    net.mask.set_data(torch::full({3}, 5.0f));
    net.counts.set_data(torch::full({2}, 9, torch::kLong));
  };
  const auto check = [](Model& model, Masked& net) {
    CHECK(saved(model, "mask") == std::vector<float>(3, 5.0f));
    CHECK(saved(model, "counts") == std::vector<float>(2, 9.0f));
    CHECK(floats(net.mask) == std::vector<float>(3, 5.0f));
    net.mask.fill_(6);  // it is the runtime's memory again
    CHECK(saved(model, "mask") == std::vector<float>(3, 6.0f));
  };
  with_model(give, check);
  with_model(nothing, [&](Model& model, Masked& net) {
    give(net);
    check(model, net);
  });
}

TEST_CASE("what_is_written_to_a_buffer_by_data_is_saved") {
  with_model(nothing, [](Model& model, Masked& net) {
    net.counts.data()[1] = 7;
    net.mask.data()[1] = 7;
    CHECK(saved(model, "counts") == std::vector<float>{0, 7});
    CHECK(saved(model, "mask") == std::vector<float>{2, 7, 2});
  });
}

TEST_CASE("a_buffer_of_another_shape_or_one_that_came_late_is_an_error_that_names_it") {
  const auto ignored = [](Model&, Masked&) {};
  const auto look = [](const std::function<void(Masked&)>& change) {
    with_model(nothing, [&](Model& model, Masked& net) {
      change(net);
      saved(model, "mask");
    });
  };
  const auto larger = [](Masked& net) { net.counts.set_data(torch::zeros({100}, torch::kLong)); };
  const auto smaller = [](Masked& net) { net.mask.set_data(torch::ones({1})); };
  const auto another = [](Masked& net) { net.register_buffer("another", torch::ones({1})); };
  for (const bool is_late : {false, true}) {
    const auto make = [&](const std::function<void(Masked&)>& change) {
      is_late ? look(change) : with_model(change, ignored);
    };
    CHECK_THROWS_WITH_AS(make(larger),
                         doctest::Contains("buffer counts was given another shape ([100] in place of [2]"), UsageError);
    CHECK_THROWS_WITH_AS(make(smaller), doctest::Contains("buffer mask was given another shape ([1] in place of [3]"),
                         UsageError);
    CHECK_THROWS_WITH_AS(make(another),
                         doctest::Contains("buffer another of the module is not the one that was sharded"), UsageError);
  }
}

TEST_CASE("a_buffer_that_was_given_a_parameters_memory_is_an_error_that_names_both") {
  with_model(nothing, [](Model& model, Masked&) {
    {
      const torch::NoGradGuard no_graph;
      model.pass([](Masked& net) {
        net.layer->bias.sum();
        net.mask.set_data(net.layer->bias.detach());
      });
    }
    CHECK_THROWS_WITH_AS(saved(model, "mask"),
                         doctest::Contains("buffer mask was given the memory of parameter layer.bias"), UsageError);
  });
}

TEST_CASE("views_of_buffers_outlive_the_model_with_their_values") {
  torch::Tensor view;
  torch::Tensor product;
  const torch::Tensor input = torch::ones({3}, torch::requires_grad());
  with_model(nothing, [&](Model&, Masked& net) {
    view = net.mask.slice(0, 1);
    product = (input * net.mask).sum();  // whose graph has saved it
  });
  CHECK(floats(view) == std::vector<float>(2, 2.0f));
  product.backward();
  CHECK(floats(input.grad()) == std::vector<float>(3, 2.0f));
}

}  // namespace buffers_test
