// Modules that are shapes first: their values depend on seed and names alone, and are never whole in memory.
#include <c10/core/InferenceMode.h>
#include <time.h>
#include <torch/version.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <map>
#include <numeric>
#include <set>

#include "networks.hpp"
#include "tensor_bytes.hpp"
#include "tessera/base/error.hpp"
#include "tessera/torch/deferred.hpp"

namespace deferred_test {

using networks::Convolutions;
using networks::Perceptron;
using tessera::Strategy;
using tessera::torch::children_of;
using tessera::torch::FullyShard;
using tessera::torch::make_deferred;
using tessera::torch::ModuleOptions;
namespace nn = torch::nn;

using Values = std::map<std::string, std::vector<float>>;

std::vector<float> floats(const torch::Tensor& tensor) {
  const torch::Tensor flat = tensor.detach().contiguous();
  return {flat.data_ptr<float>(), flat.data_ptr<float>() + flat.numel()};
}

// Returns values by name, as the ranks have them after finalize().
template <typename Net>
Values values_of(int ranks, Strategy strategy, const std::function<std::shared_ptr<Net>()>& make,
                 const ModuleOptions& options = {}, std::uint64_t seed = 0) {
  Values values;
  tessera::launch({.ranks = ranks}, [&](tessera::World& world) {
    const auto net = make();
    const auto names = net->named_parameters().keys();
    FullyShard model(world, net, options, {.strategy = strategy, .seed = seed});
    model.finalize(tessera::AdamW{});
    for (const std::string& name : names) {
      const auto whole = model.sharded().whole(model.parameter(name));
      if (world.rank() == 0) values[name] = whole;
    }
    for (const auto& buffer : net->named_buffers()) {
      if (world.rank() == 0 && buffer.value().scalar_type() == torch::kFloat) {
        values[buffer.key()] = floats(buffer.value());
      }
    }
  });
  return values;
}

// Constructors do these: computed parameters, initialisations over and over, at the end and by parts, copies of each
// other, tables that are computed, buffers of several types.
struct Busy : nn::Module {
  explicit Busy(bool with_more = false) {
    if (with_more) more = register_module("more", nn::Linear(4, 4));
    first = register_module("first", nn::Linear(6, 4));
    target = register_module("target", nn::Linear(6, 4));
    scaled = register_parameter("scaled", torch::randn({4, 3}) * 0.5 + 1);
    norm = register_module("norm", nn::BatchNorm1d(4));
    const torch::Tensor places = torch::arange(8).to(torch::kFloat);
    table = register_buffer("table", torch::cat({places.sin(), places.cos()}).view({2, 8}));
    counts = register_buffer("counts", torch::arange(3));
    const torch::NoGradGuard no_grad;
    for (auto& parameter : first->named_parameters()) {
      if (parameter.key() == "weight") nn::init::normal_(parameter.value(), 0.0, 0.02);
    }
    first->weight.narrow(0, 1, 2).fill_(7);
    first->weight.t()[5].mul_(2);
    target->weight.copy_(first->weight);
  }
  nn::Linear more{nullptr}, first{nullptr}, target{nullptr};
  nn::BatchNorm1d norm{nullptr};
  torch::Tensor scaled, table, counts;
};

std::shared_ptr<Busy> deferred_busy() { return make_deferred<Busy>(5); }

TEST_CASE("deferred_values_are_those_that_the_constructor_says") {
  const Values values = values_of<Busy>(1, Strategy::fsdp, deferred_busy);
  Busy plain;
  for (const auto& parameter : plain.named_parameters()) {
    REQUIRE(values.at(parameter.key()).size() == static_cast<std::size_t>(parameter.value().numel()));
  }
  const std::vector<float>& first = values.at("first.weight");
  for (std::size_t row = 0; row < 4; ++row) {
    for (std::size_t column = 0; column < 6; ++column) {
      const float value = first[row * 6 + column];
      if (row == 1 || row == 2) {
        CHECK(value == (column == 5 ? 14.0f : 7.0f));
      } else {
        CHECK(value != 0.0f);
        CHECK(std::abs(value) < 0.2f);
      }
    }
  }
  CHECK(values.at("target.weight") == first);
  CHECK(values.at("target.bias") != values.at("first.bias"));
  for (const float value : values.at("first.bias")) CHECK(std::abs(value) <= 1 / std::sqrt(6.0f));
  const std::vector<float>& scaled = values.at("scaled");
  CHECK(std::abs(std::accumulate(scaled.begin(), scaled.end(), 0.0f) / 12 - 1) < 1);
  CHECK(std::set<float>(scaled.begin(), scaled.end()).size() == 12);
  for (const char* name : {"norm.weight", "norm.bias"})
    CHECK(values.at(name) == floats(plain.named_parameters()[name]));
  for (const char* name : {"norm.running_mean", "norm.running_var", "table"}) {
    CHECK(values.at(name) == floats(plain.named_buffers()[name]));
  }
}

TEST_CASE("deferred_values_are_the_same_for_any_ranks_strategies_and_units") {
  const Values expected = values_of<Busy>(1, Strategy::ddp, deferred_busy);
  for (const int ranks : {1, 2, 3}) {
    for (const Strategy strategy : tessera::flat_strategies) {
      CAPTURE(ranks);
      CAPTURE(tessera::to_string(strategy));
      CHECK(values_of<Busy>(ranks, strategy, deferred_busy) == expected);
    }
  }
  CHECK(values_of<Busy>(2, Strategy::fsdp, deferred_busy, {.units = tessera::torch::named({"norm"})}) == expected);
  CHECK(values_of<Busy>(1, Strategy::fsdp, [] { return make_deferred<Busy>(6); }) != expected);
}

TEST_CASE("deferred_values_stay_where_other_parts_of_the_module_change") {
  const Values expected = values_of<Busy>(1, Strategy::fsdp, deferred_busy);
  const Values with_more = values_of<Busy>(1, Strategy::fsdp, [] { return make_deferred<Busy>(5, true); });
  CHECK(with_more.size() == expected.size() + 2);
  for (const auto& [name, values] : expected) CHECK(with_more.at(name) == values);
}

TEST_CASE("other_buffers_get_their_values_and_torchs_generator_stays_where_it_is") {
  tessera::launch({.ranks = 1}, [&](tessera::World& world) {
    torch::manual_seed(3);
    const torch::Tensor expected = torch::rand({4});
    torch::manual_seed(3);
    const auto net = deferred_busy();
    CHECK(net->first->weight.is_meta());
    FullyShard model(world, net);
    model.finalize(tessera::AdamW{});
    CHECK(torch::equal(net->counts, torch::arange(3)));
    CHECK(net->norm->num_batches_tracked.item<std::int64_t>() == 0);
    CHECK(torch::equal(torch::rand({4}), expected));
  });
}

struct Wide : nn::Module {
  Wide() {
    for (int i = 0; i < layers; ++i) stack->push_back(nn::Linear(width, width));
    register_module("stack", stack);
  }
  torch::Tensor forward(const torch::Tensor& x) { return stack->forward(x); }
  static constexpr int width = 256;
  static constexpr int layers = 12;
  static constexpr std::int64_t unit_bytes = 4 * width * (width + 1);
  nn::Sequential stack;
};

std::int64_t peak_of(int ranks, const std::function<std::shared_ptr<Wide>()>& make) {
  std::atomic<std::int64_t> most = 0;
  tessera::launch({.ranks = ranks}, [&](tessera::World& world) {
    const tensor_bytes::Peak peak;
    FullyShard model(world, make(), {.units = children_of("stack")});
    model.finalize(tessera::AdamW{});
    std::int64_t known = most;
    while (known < peak.most() && !most.compare_exchange_weak(known, peak.most())) {
    }
  });
  return most;
}

TEST_CASE("a_deferred_module_takes_less_than_a_unit_beside_its_shards_on_any_rank") {
  for (const int ranks : {1, 3}) {
    constexpr std::int64_t generator = 8192;  // its state, at most
    CHECK(peak_of(ranks, [] { return make_deferred<Wide>(1); }) <= Wide::unit_bytes + generator);
    CHECK(peak_of(ranks, [] { return std::make_shared<Wide>(); }) >= Wide::layers * Wide::unit_bytes);
  }
}

TEST_CASE("a_rule_gives_parameters_values_by_name_and_seed_on_each_rank") {
  const auto rule = [](const std::string& name, torch::IntArrayRef sizes) {
    if (name.ends_with("bias")) return tessera::Initial::ones();
    return tessera::Initial::fan_in(static_cast<std::size_t>(sizes[1]));
  };
  const auto shapes = [] { return make_deferred<Perceptron>(1); };
  std::vector<float> last(3 * 13);
  tessera::Initial::fan_in(13).fill(last, 9, "last.weight", 0);
  for (const int ranks : {1, 3}) {
    for (const Strategy strategy : {Strategy::ddp, Strategy::fsdp}) {
      const auto values =
          values_of<Perceptron>(ranks, strategy, shapes, {.units = children_of("blocks"), .initial = rule}, 9);
      CHECK(values.at("last.weight") == last);
      CHECK(values.at("last.bias") == std::vector<float>(3, 1.0f));
    }
  }
}

TEST_CASE("deferred_modules_train_as_others_and_agree_between_strategies") {
  const networks::Kind kind = networks::all_kinds()[1];
  const auto train = [&](Strategy strategy) {
    std::vector<float> losses;
    tessera::launch({.ranks = 2}, [&](tessera::World& world) {
      FullyShard model(world, make_deferred<Convolutions>(1), {.units = children_of("layers")}, {.strategy = strategy});
      model.finalize(tessera::AdamW{.learning_rate = 0.05f});
      const auto batch = networks::part(networks::batch_of(kind, 0, 12), world.rank(), 2);
      for (int step = 0; step < 20; ++step) {
        const auto loss = torch::cross_entropy_loss(model.forward(batch.input), batch.target);
        model.backward(loss);
        model.update();
        const float mean = world.average(loss.item<float>(), "loss");
        if (world.rank() == 0) losses.push_back(mean);
      }
    });
    return losses;
  };
  const std::vector<float> losses = train(Strategy::ddp);
  CHECK(losses.back() < 0.5f * losses.front());
  CHECK(train(Strategy::fsdp) == losses);
}

// Uses its first layer again at the end.
struct Looped : nn::Module {
  Looped() {
    outer = register_module("outer", nn::Linear(3, 3));
    inner = register_module("inner", nn::Linear(3, 3));
  }
  torch::Tensor forward(const torch::Tensor& x) { return outer(inner(outer(x))); }
  nn::Linear outer{nullptr}, inner{nullptr};
};

TEST_CASE("the_order_of_a_deferred_modules_units_is_learnt_with_shapes") {
  tessera::launch({.ranks = 2}, [&](tessera::World& world) {
    const auto net = make_deferred<Looped>(1);
    FullyShard model(world, net);
    model.learn([&] { net->forward(torch::empty({2, 3}, torch::kMeta)); });
    model.finalize(tessera::Sgd{.learning_rate = 0.1f});
    model.backward(model.forward(torch::ones({2, 3})).sum());
    model.update();
    CHECK(model.last_step().gradient_norm > 0);
  });
}

template <typename Act>
void check_error(Act act, const std::string& words) {
  CHECK_THROWS_WITH_AS(act(), doctest::Contains(words.c_str()), tessera::UsageError);
}

// One parameter is a copy of what another one was before that changed.
struct CopiesFirst : nn::Module {
  explicit CopiesFirst(const std::string& copy) {
    const torch::NoGradGuard no_grad;
    const torch::Tensor values = torch::full({3}, 2.0f);
    register_parameter(copy, torch::zeros({3})).copy_(values);
    register_parameter("changed", values.uniform_());
  }
};

TEST_CASE("a_deferred_copy_has_what_was_there_when_it_was_made") {
  const auto values = [](const std::string& copy) {
    return values_of<CopiesFirst>(1, Strategy::fsdp, [=] { return make_deferred<CopiesFirst>(1, copy); });
  };
  CHECK(values("copied").at("copied") == std::vector<float>(3, 2.0f));
  // Later draws are not drawn by the copy's name.
  CHECK(values("copied").at("changed") == values("alike").at("changed"));
}

// Initialisation that is not to be tracked: only tensors that come and go are inference tensors.
// Its constructor clones layers.
struct Encoder : nn::Module {
  Encoder() {
    const nn::TransformerEncoderLayer layer(nn::TransformerEncoderLayerOptions(8, 2).dim_feedforward(16));
    encoder = register_module("encoder", nn::TransformerEncoder(layer, 2));
  }
  nn::TransformerEncoder encoder{nullptr};
};

TEST_CASE("torchs_encoder_is_deferred") {
  tessera::launch({.ranks = 2}, [](tessera::World& world) {
    FullyShard model(world, make_deferred<Encoder>(1), {.units = tessera::torch::children_of("encoder.layers")});
    model.finalize(tessera::AdamW{});
    const auto first = model.sharded().whole(model.parameter("encoder.layers.0.linear1.weight"));
    CHECK(first != std::vector<float>(first.size(), 0.0f));
    CHECK(model.sharded().whole(model.parameter("encoder.layers.1.linear1.weight")) == first);
  });
}

struct InitialisesForInference : nn::Module {
  InitialisesForInference() {
    layer = register_module("layer", nn::Linear(4, 4));
    const c10::InferenceMode inference;
    layer->weight.copy_(torch::arange(16).view({4, 4}) * 0.5);
  }
  nn::Linear layer{nullptr};
};

TEST_CASE("a_constructor_may_initialise_under_inference_mode") {
  using Net = InitialisesForInference;
  const Values values = values_of<Net>(2, Strategy::fsdp, [] { return make_deferred<Net>(1); });
  CHECK(values.at("layer.weight") == floats(Net().layer->weight));
}

struct ManyLayers : nn::Module {
  ManyLayers() {
    for (int i = 0; i < 4000; ++i) stack->push_back(nn::Linear(4, 4));
    register_module("stack", stack);
  }
  nn::Sequential stack;
};

// The seconds are this thread's, whatever else the machine does.
double processor_seconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// Recording takes as long as there are operators. What a parameter needs is found among its own: searched for among
// all, it took 27 times as long as recording here, and twice that with twice the layers.
TEST_CASE("what_a_parameter_needs_is_found_without_a_look_at_all_operators") {
  tessera::launch({.ranks = 1}, [](tessera::World& world) {
    const double begin = processor_seconds();
    const auto net = make_deferred<ManyLayers>(1);
    const double recorded = processor_seconds();
    const FullyShard model(world, net, {.units = tessera::torch::named({})});
    CHECK(processor_seconds() - recorded < 8 * (recorded - begin));
  });
}

struct WritesMemory : nn::Module {
  WritesMemory() {
    layer = register_module("layer", nn::Linear(2, 2));
    *static_cast<float*>(layer->weight.data_ptr()) = 1;
  }
  nn::Linear layer{nullptr};
};

TEST_CASE("memory_of_a_tensor_without_any_is_refused_where_torch_can") {
  if (TORCH_VERSION_MAJOR < 2) return;
  CHECK_THROWS_WITH_AS(make_deferred<WritesMemory>(1), doctest::Contains("the memory of a tensor was asked for where"),
                       c10::Error);
  tessera::launch({.ranks = 1}, [](tessera::World& world) {
    const auto net = std::make_shared<Perceptron>();
    FullyShard model(world, net);
    model.finalize(tessera::AdamW{});
    CHECK_THROWS_WITH_AS(net->last->weight.data_ptr(), doctest::Contains("the memory of parameter last.weight was"),
                         c10::Error);
  });
}

struct ReadsValues : nn::Module {
  explicit ReadsValues(at::Device device) {
    const torch::Tensor rates = torch::linspace(0, 1, 3, device);
    if (rates[1].item<float>() == 0.5f) layer = register_module("layer", nn::Linear(2, 2));
  }
  explicit ReadsValues() {
    const torch::Tensor rates = torch::linspace(0, 1, 3);
    if (rates[1].item<float>() == 0.5f) layer = register_module("layer", nn::Linear(2, 2));
  }
  nn::Linear layer{nullptr};
};

TEST_CASE("what_cannot_be_deferred_is_an_error_that_names_it") {
  check_error([] { make_deferred<ReadsValues>(1); }, "aten::item failed where a module is deferred: ");
  CHECK(make_deferred<ReadsValues>(1, at::kCPU)->layer->weight.is_meta());
  check_error([] { tessera::torch::Deferred outer(1), inner(1); }, "made inside of another one");
  check_error(
      [] {
        const tessera::torch::Deferred shapes_only(1);
        torch::zeros({3}).normal_(0, 1, at::detail::createCPUGenerator(1));
      },
      "aten::normal_ was given a generator where a module is deferred");
  tessera::launch({.ranks = 1}, [&](tessera::World& world) {
    const auto changed = make_deferred<Looped>(1);
    {
      const torch::NoGradGuard no_grad;
      changed->inner->bias.zero_();
    }
    check_error([&] { FullyShard model(world, changed); }, "inner.bias was changed after Deferred had ended");
    const auto shapes = std::make_shared<nn::Module>();
    shapes->register_parameter("scale", torch::empty({2}, torch::kMeta));
    check_error([&] { FullyShard model(world, shapes); }, "scale has a shape and no values: make the module with");
  });
}

}  // namespace deferred_test
