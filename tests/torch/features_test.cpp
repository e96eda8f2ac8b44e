// FullyShard has these beside training: frozen and tied parameters, learnt orders, evaluation, buffers, names.
#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <filesystem>
#include <limits>

#include "networks.hpp"
#include "tensor_bytes.hpp"
#include "tessera/base/error.hpp"

namespace features_test {

using networks::check_as_plain_step;
using networks::check_close;
using networks::floats;
using networks::Perceptron;
using networks::plain_step;
using networks::train_step;
using tessera::Strategy;
using tessera::torch::FullyShard;
namespace nn = torch::nn;

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
    for (const bool learn : {false, true}) {
      train_step(values, strategy, {.units = tessera::torch::named({"outer", "inner"})}, check, learn);
    }
  }
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
      check_as_plain_step(model, *values, plain);
    });
  }
}

// Takes two tensors, and gives two that come from different units.
struct Paired : nn::Module {
  Paired() {
    left = register_module("left", nn::Linear(3, 3));
    right = register_module("right", nn::Linear(3, 3));
  }
  std::tuple<torch::Tensor, torch::Tensor> both(const torch::Tensor& a, const torch::Tensor& b) {
    const torch::Tensor x = left(a);
    return {x, right(b + x)};
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const auto [a, b] = both(x, x.flip(0));
    return torch::cat({a, b});
  }
  nn::Linear left{nullptr}, right{nullptr};
};

TEST_CASE("modules_take_and_give_several_tensors") {
  for (const Strategy strategy : {Strategy::ddp, Strategy::fsdp}) {
    CAPTURE(tessera::to_string(strategy));
    const auto values = std::make_shared<Paired>();
    tessera::launch({.ranks = 2}, [&](tessera::World& world) {
      const auto net = std::make_shared<Paired>();
      networks::copy_values(*values, *net);
      FullyShard model(world, net, {}, {.strategy = strategy});
      model.finalize(tessera::Sgd{.learning_rate = 0.1f});
      const torch::Tensor x = torch::linspace(-1, 1, 6).view({2, 3});
      const auto outputs = model.pass([&](Paired& module) { return module.both(x, x.flip(0)); });
      model.backward(std::get<0>(outputs).square().sum() + std::get<1>(outputs).square().sum());
      model.update();
      Paired plain;
      check_as_plain_step(model, *values, plain);
    });
  }
}

struct Deep : nn::Module {
  Deep() {
    for (std::size_t i = 0; i < layers; ++i) stack->push_back(nn::Linear(64, 64));
    register_module("stack", stack);
  }
  torch::Tensor forward(torch::Tensor x) {
    for (std::size_t i = 0; i < layers; ++i) {
      const auto part = [this, i](const torch::Tensor& input) {
        return stack[i]->as<nn::Linear>()->forward(torch::tanh(torch::tanh(torch::tanh(torch::tanh(input)))));
      };
      x = checkpoints ? tessera::torch::checkpoint(part, x) : part(x);
    }
    return x;
  }
  static constexpr std::size_t layers = 6;
  nn::ModuleList stack;
  bool checkpoints = false;
};

// Held against what torch itself reports, in which each block has 64 bytes more.
TEST_CASE("activations_are_measured_and_checkpointing_makes_them_less") {
  const auto peak_of = [](bool checkpoints) {
    std::int64_t counted = 0;
    tessera::launch({.ranks = 2}, [&](tessera::World& world) {
      const auto net = std::make_shared<Deep>();
      net->checkpoints = checkpoints;
      FullyShard model(world, net, {.units = tessera::torch::children_of("stack")});
      model.finalize(tessera::AdamW{});
      const torch::Tensor input = torch::rand({256, 64});
      CHECK(model.peak_activations() == tessera::Bytes(0));
      const tensor_bytes::Peak peak;
      model.backward(model.forward(input).square().sum());
      const auto most = static_cast<std::int64_t>(model.peak_activations().count());
      CHECK(most <= peak.most());
      CHECK(most >= peak.most() - 64 * 64);
      model.update();
      if (world.rank() == 0) counted = most;
    });
    return counted;
  };
  // Each tanh keeps what it gives.
  constexpr auto layers = static_cast<std::int64_t>(Deep::layers);
  constexpr std::int64_t tensor = 256 * 64 * 4;
  const std::int64_t kept = peak_of(false);
  CHECK(kept >= 4 * layers * tensor);
  CHECK(kept <= (4 * layers + 6) * tensor);
  CHECK(peak_of(true) <= (layers + 10) * tensor);
}

TEST_CASE("activations_are_measured_also_where_another_models_pass_comes_between") {
  const auto peak_of = [](bool with_teacher) {
    std::uint64_t most = 0;
    tessera::launch({.ranks = 1}, [&](tessera::World& world) {
      FullyShard student(world, std::make_shared<Deep>(), {.units = tessera::torch::children_of("stack")});
      FullyShard teacher(world, std::make_shared<Deep>(), {.units = tessera::torch::children_of("stack")});
      student.finalize(tessera::AdamW{});
      teacher.finalize(tessera::AdamW{});
      const torch::Tensor input = torch::rand({256, 64});
      const torch::Tensor scores = student.forward(input);
      if (with_teacher) {
        const torch::NoGradGuard no_grad;
        teacher.forward(input.narrow(0, 0, 1));  // which takes less than the backward pass
      }
      student.backward(scores.square().sum());
      most = student.peak_activations().count();
    });
    return most;
  };
  CHECK(peak_of(true) == peak_of(false));
}

// Near the largest size there is no room for the count in front of a block.
TEST_CASE("sizes_that_no_memory_has_are_torchs_own_error") {
  constexpr std::size_t largest = std::numeric_limits<std::size_t>::max();
  for (const std::size_t bytes : {largest, largest - 8, largest - 63, largest - 64, largest / 2 + 1}) {
    CAPTURE(bytes);
    CHECK_THROWS_AS(c10::GetCPUAllocator()->allocate(bytes), c10::Error);
  }
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

// Its buffers of other types than fp32 are the module's own, with copies in the arena.
struct Flagged : torch::nn::Module {
  Flagged() {
    layer = register_module("layer", torch::nn::Linear(2, 2));
    counts = register_buffer("counts", torch::zeros({2}, torch::kLong));
    flag = register_buffer("flag", torch::ones({3}, torch::kBool));
  }
  torch::Tensor forward(const torch::Tensor& input) { return layer(input); }
  torch::nn::Linear layer{nullptr};
  torch::Tensor counts;
  torch::Tensor flag;
};

TEST_CASE("what_a_module_writes_into_its_buffers_between_steps_is_in_the_next_checkpoint") {
  const auto folder = std::filesystem::temp_directory_path() / "tessera_torch_written_between_steps";
  std::filesystem::remove_all(folder);
  tessera::launch({.ranks = 2}, [&](tessera::World& world) {
    for (const bool resumed : {false, true}) {
      const auto net = std::make_shared<Flagged>();
      FullyShard model(world, net, {}, {.checkpointing = tessera::Checkpointing::blocking});
      model.finalize(tessera::AdamW{});
      tessera::Checkpointer checkpoints(model.sharded(), {.directory = folder});
      if (resumed) checkpoints.load(checkpoints.latest()->path);
      model.backward(model.forward(torch::ones({1, 2})).sum());
      model.update();
      if (!resumed) {
        net->flag[1] = false;
        net->counts[0] = 7;
        checkpoints.save({.step = 1});
      }
      CHECK(net->counts[0].item<std::int64_t>() == 7);
      CHECK_FALSE(net->flag[1].item<bool>());
    }
  });
  std::filesystem::remove_all(folder);
}

// Counts its passes in a buffer of two names, and calls its weight a buffer, too.
struct CountsPasses : nn::Module {
  CountsPasses() {
    layer = register_module("layer", nn::Linear(3, 3));
    passes = register_buffer("passes", torch::full({2}, 3.0f));
    register_buffer("alias", passes);
    register_buffer("kept_weight", layer->weight);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    {
      const torch::NoGradGuard no_grad;
      passes += 1;
    }
    return layer(x);
  }
  nn::Linear layer{nullptr};
  torch::Tensor passes;
};

TEST_CASE("a_buffer_with_two_names_is_one_by_the_first") {
  const auto values = std::make_shared<CountsPasses>();
  train_step(values, Strategy::fsdp, {}, [](auto& model, CountsPasses& net) {
    std::vector<std::string> names;
    for (std::size_t i = 0; i < model.sharded().unit_count(); ++i) {
      for (const tessera::Buffer* buffer : model.sharded().unit(i).buffers()) {
        names.emplace_back(buffer->name());
        CHECK(model.sharded().buffer(*buffer)[0] == 4.0f);
      }
    }
    CHECK(names == std::vector<std::string>{"passes"});
    CHECK(floats(net.named_buffers()["alias"]) == std::vector<float>(2, 4.0f));
  });
}

// Buffers of types that torch's programs have, and one layer.
struct Buffered : nn::Module {
  explicit Buffered(double factor) {
    layer = register_module("layer", nn::Linear(3, 3));
    register_buffer("steps", torch::full({}, 7 * factor, torch::kLong));
    register_buffer("mask", torch::full({3}, factor > 1, torch::kBool));
    register_buffer("table", torch::full({2, 2}, 0.5 * factor, torch::kDouble));
    register_buffer("half", torch::full({3}, 0.5 * factor, torch::kHalf));
  }
  torch::Tensor forward(const torch::Tensor& x) { return layer(x); }
  nn::Linear layer{nullptr};
};

TEST_CASE("buffers_of_every_type_begin_with_the_values_of_rank_0_and_keep_their_types") {
  for (const Strategy strategy : {Strategy::ddp, Strategy::fsdp}) {
    tessera::launch({.ranks = 2}, [&](tessera::World& world) {
      const auto net = std::make_shared<Buffered>(world.rank() == 0 ? 1 : 5);
      FullyShard model(world, net, {}, {.strategy = strategy});
      model.finalize(tessera::Sgd{});
      const Buffered first(1);
      for (const auto& buffer : first.named_buffers()) {
        CAPTURE(buffer.key());
        CHECK(torch::equal(net->named_buffers()[buffer.key()], buffer.value()));
        CHECK((net->named_buffers()[buffer.key()].scalar_type() == buffer.value().scalar_type()));
      }
    });
  }
}

TEST_CASE("a_buffer_that_cannot_be_kept_is_an_error") {
  const auto finalize = [](const std::function<void(Buffered&)>& change) {
    tessera::launch({.ranks = 1}, [&](tessera::World& world) {
      const auto net = std::make_shared<Buffered>(1);
      change(*net);
      FullyShard model(world, net);
      model.finalize(tessera::Sgd{});
    });
  };
  CHECK_THROWS_WITH_AS(
      finalize([](Buffered& net) { net.register_buffer("third", torch::full({1}, 1.0 / 3, torch::kDouble)); }),
      doctest::Contains("buffer third is Double and has values that fp32 does not hold"), tessera::UsageError);
  torch::Tensor kept;
  CHECK_THROWS_WITH_AS(
      finalize([&](Buffered& net) { kept = net.register_buffer("shared", torch::zeros({4})).slice(0, 1); }),
      doctest::Contains("buffer shared shares its memory"), tessera::UsageError);
}

TEST_CASE("learning_leaves_buffers_and_generators_as_they_were") {
  tessera::launch({.ranks = 1}, [](tessera::World& world) {
    const auto net = std::make_shared<networks::Convolutions>();
    const auto before = floats(net->named_buffers()["layers.norm.running_mean"]);
    FullyShard model(world, net, {.units = tessera::torch::children_of("layers")});
    torch::manual_seed(3);
    model.learn([&] { net->forward(torch::randn({4, 1, 6, 6})); });
    CHECK(floats(net->named_buffers()["layers.norm.running_mean"]) == before);
    CHECK(net->named_buffers()["layers.norm.num_batches_tracked"].item<int>() == 0);
    const auto drawn = floats(torch::randn({3}));
    torch::manual_seed(3);
    CHECK(floats(torch::randn({3})) == drawn);
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

TEST_CASE("modules_made_from_one_seed_are_equal_whatever_other_threads_draw") {
  const std::vector<float> expected = floats(tessera::torch::make_module<Perceptron>(5)->last->weight);
  tessera::launch({.ranks = 4}, [&](tessera::World& world) {
    for (int i = 0; i < 50; ++i) {
      if (world.rank() % 2 == 1) torch::randn({300});
      CHECK(floats(tessera::torch::make_module<Perceptron>(5)->last->weight) == expected);
    }
  });
  torch::manual_seed(5);
  CHECK(floats(Perceptron().last->weight) == expected);
}

TEST_CASE("weights_on_disk_have_the_modules_own_names") {
  const auto path = std::filesystem::temp_directory_path() / "tessera_torch_names.safetensors";
  tessera::launch({.ranks = 2}, [&](tessera::World& world) {
    const auto net = std::make_shared<networks::Convolutions>();
    std::vector<std::string> names = net->named_parameters().keys();
    const std::vector<std::string> buffers = net->named_buffers().keys();
    names.insert(names.end(), buffers.begin(), buffers.end());
    FullyShard model(world, net, {.units = tessera::torch::children_of("layers")});
    model.finalize(tessera::AdamW{});
    tessera::dump_weights(model.sharded(), path);
    world.barrier("written");
    const tessera::SafetensorsReader file(path);
    std::vector<std::string> stored;
    for (const tessera::StoredTensor& tensor : file.tensors()) stored.push_back(tensor.name);
    CHECK(stored.size() == names.size());
    CHECK(std::is_permutation(stored.begin(), stored.end(), names.begin(), names.end()));
  });
  std::filesystem::remove(path);
}

// Two steps, a checkpoint, two more; and the last two again from the checkpoint, on other ranks and another strategy.
TEST_CASE("training_goes_on_from_a_checkpoint_with_weights_and_buffers") {
  const auto folder = std::filesystem::temp_directory_path() / "tessera_torch_checkpoint";
  std::filesystem::remove_all(folder);
  const networks::Kind kind = networks::all_kinds()[1];
  const auto train = [&](tessera::FullyShardOptions options, bool resumes) {
    std::vector<float> result;
    tessera::launch({.ranks = 2}, [&](tessera::World& world) {
      const auto net = tessera::torch::make_module<networks::Convolutions>(resumes ? 2 : 1);
      options.checkpointing = tessera::Checkpointing::blocking;
      FullyShard model(world, net, {.units = tessera::torch::children_of("layers")}, options);
      model.finalize(tessera::AdamW{});
      tessera::Checkpointer checkpointer(model.sharded(), {.directory = folder});
      if (resumes) checkpointer.load(checkpointer.latest()->path);
      for (int step = resumes ? 2 : 0; step < 4; ++step) {
        const auto batch = networks::part(networks::batch_of(kind, step, 8), world.rank(), 2);
        model.backward(torch::cross_entropy_loss(model.forward(batch.input), batch.target));
        model.update();
        if (step != 1) continue;
        model.sharded().synchronize_buffers();
        checkpointer.save({.step = 2});
      }
      const auto weights = model.sharded().whole(model.parameter("layers.linear.weight"));
      if (world.rank() != 0) return;
      result = weights;
      for (const char* name : {"layers.norm.running_mean", "layers.norm.num_batches_tracked"}) {
        const auto values = floats(net->named_buffers()[name]);
        result.insert(result.end(), values.begin(), values.end());
      }
    });
    return result;
  };
  const std::vector<float> whole = train({.strategy = Strategy::ddp}, false);
  CHECK(train({.strategy = Strategy::fsdp}, true) == whole);
  CHECK(whole.back() == 4.0f);
  std::filesystem::remove_all(folder);
}

TEST_CASE("weights_and_buffers_of_a_file_take_the_place_of_the_modules_own") {
  const auto path = std::filesystem::temp_directory_path() / "tessera_torch_weights.safetensors";
  std::vector<std::vector<float>> written;
  for (const bool writes : {true, false}) {
    tessera::launch({.ranks = 2}, [&](tessera::World& world) {
      const auto net = tessera::torch::make_module<networks::Convolutions>(writes ? 1 : 2);
      FullyShard model(world, net, {.units = tessera::torch::children_of("layers")});
      model.finalize(tessera::AdamW{});
      const auto batch = networks::batch_of(networks::all_kinds()[1], 0, 4);
      if (writes) {
        model.backward(model.forward(batch.input).sum());
        model.update();
        tessera::dump_weights(model.sharded(), path);
      } else {
        tessera::load_weights(model.sharded(), path);
        const torch::NoGradGuard no_grad;
        net->eval();
        model.forward(batch.input);
      }
      std::vector<std::vector<float>> values{model.sharded().whole(model.parameter("layers.linear.weight"))};
      for (const auto& buffer : net->named_buffers()) values.push_back(floats(buffer.value()));
      if (world.rank() == 0 && writes) written = values;
      if (world.rank() == 0) CHECK(values == written);
    });
  }
  CHECK(written.back() == std::vector<float>{1.0f});
  std::filesystem::remove(path);
}

TEST_CASE("units_are_named_by_a_predicate_as_well") {
  tessera::launch({.ranks = 1}, [](tessera::World& world) {
    const auto net = std::make_shared<Perceptron>();
    FullyShard model(world, net, {.units = tessera::torch::where([](std::string_view path, const nn::Module& module) {
                                    return path != "last" && module.as<nn::Linear>() != nullptr;
                                  })});
    tessera::FullyShard& sharded = model.sharded();
    std::vector<std::string> names;
    for (std::size_t i = 0; i < sharded.unit_count(); ++i) names.emplace_back(sharded.unit(i).name());
    CHECK(names == std::vector<std::string>{"first", "blocks.0", "blocks.1", "blocks.2", "root"});
  });
}

// Its submodules have names that units of no submodule would have.
struct Rooted : nn::Module {
  Rooted() {
    before = register_parameter("before", torch::full({3}, 1.5f));
    first = register_module("first", nn::Linear(3, 3));
    for (int i = 0; i < 3; ++i) root->push_back(nn::Linear(3, 3));
    register_module("root", root);
  }
  torch::Tensor forward(const torch::Tensor& x) { return root->forward(first(x * before)); }
  nn::Linear first{nullptr};
  nn::Sequential root;
  torch::Tensor before;
};

TEST_CASE("a_submodule_that_is_called_root_is_a_unit_of_its_own") {
  const auto values = std::make_shared<Rooted>();
  const auto names_of = [](tessera::FullyShard& sharded) {
    std::vector<std::string> names;
    for (std::size_t i = 0; i < sharded.unit_count(); ++i) names.emplace_back(sharded.unit(i).name());
    return names;
  };
  const std::vector<std::string> with_children{"first", "root.0", "root.1", "root.2"};
  for (const bool children : {false, true}) {
    train_step(values, Strategy::fsdp,
               {.units = children ? tessera::torch::named(with_children) : tessera::torch::children_of("")},
               [&](auto& model, Rooted&) {
                 CHECK(names_of(model.sharded()) ==
                       (children ? std::vector<std::string>{"root", "first", "root.0", "root.1", "root.2"}
                                 : std::vector<std::string>{"root.2", "first", "root"}));
                 Rooted plain;
                 check_as_plain_step(model, *values, plain);
               });
  }
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
