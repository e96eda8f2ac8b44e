// Wrong use of a sharded torch module is one clear error, and the same one on all ranks.
#include "networks.hpp"

#include <c10/core/InferenceMode.h>

#include <atomic>
#include <chrono>
#include <mutex>

#include "tessera/base/error.hpp"
#include "tessera/torch/deferred.hpp"

namespace wrong_use_test {

using networks::Kind;
using networks::Perceptron;
using tessera::UsageError;
using tessera::torch::FullyShard;

const Kind perceptron = networks::all_kinds()[0];
const tessera::torch::ModuleOptions blocks{.units = tessera::torch::children_of("blocks")};

// Trains one step, then does `body` on one rank.
template <typename Body>
void after_a_step(Body body) {
  tessera::launch({.ranks = 1}, [&](tessera::World& world) {
    const auto net = std::make_shared<Perceptron>();
    FullyShard model(world, net, blocks);
    model.finalize(tessera::AdamW{});
    const auto batch = networks::batch_of(perceptron, 0, 4);
    model.backward(model->forward(batch.input).sum());
    model.update();
    body(model, *net, batch.input);
  });
}

void check_error(const std::function<void()>& act, const std::string& words) {
  try {
    act();
  } catch (const UsageError& error) {
    CAPTURE(error.what());
    CHECK(std::string(error.what()).find(words) != std::string::npos);
    return;
  }
  FAIL("no UsageError, but one was expected that says: " << words);
}

TEST_CASE("a_parameter_read_outside_of_a_pass_is_named") {
  after_a_step([](auto&, Perceptron& net, const auto&) {
    check_error([&] { net.last->weight.norm(); },
                "was to use parameter last.weight outside of a pass: the parameters of unit root.2 are whole only");
    check_error([&] { torch::stack({torch::zeros({13, 7}), net.first->weight}); }, "parameter first.weight outside");
    CHECK(net.last->weight.sizes() == torch::IntArrayRef({3, 13}));
  });
}

TEST_CASE("an_operator_that_takes_parameters_of_two_units_names_both") {
  after_a_step([](auto& model, Perceptron& net, const auto&) {
    check_error([&] { torch::mm(model->first->weight, net.blocks[0]->template as<torch::nn::Linear>()->weight); },
                "aten::mm takes parameters of two units, first.weight and blocks.0.weight");
  });
}

TEST_CASE("backward_without_forward_is_an_error") {
  after_a_step([](auto& model, auto&, const auto&) {
    check_error([&] { model.backward(torch::zeros({}, torch::requires_grad())); },
                "backward() came without a forward pass");
  });
}

TEST_CASE("loss_backward_in_place_of_model_backward_is_an_error") {
  after_a_step([](auto& model, auto&, const auto& input) {
    const auto loss = model->forward(input).sum();
    check_error([&] { loss.backward(); }, "call model.backward(loss), not loss.backward()");
  });
}

TEST_CASE("update_inside_a_step_is_an_error") {
  after_a_step([](auto& model, auto&, const auto& input) {
    model->forward(input);
    check_error([&] { model.update(); }, "the backward window of unit root.2 was expected");
  });
}

TEST_CASE("a_module_that_changed_after_finalize_is_an_error") {
  after_a_step([](auto& model, Perceptron& net, const auto& input) {
    net.blocks->push_back(torch::nn::Linear(13, 13));
    check_error([&] { model->forward(input); },
                "parameter blocks.3.weight of the module is not the one that was sharded");
  });
  after_a_step(
      [](auto&, Perceptron& net, const auto&) { check_error([&] { net.to(torch::kDouble); }, "outside of a pass"); });
}

TEST_CASE("a_plan_that_a_module_trains_by_is_not_compiled_anew") {
  after_a_step([](auto& model, auto&, const auto&) {
    check_error([&] { model.sharded().recompile(); },
                "recompile() was called while a module of libtorch trains, whose buffers stand in its memory: change "
                "requires_grad between steps");
  });
}

TEST_CASE("a_pass_that_throws_while_it_is_learnt_leaves_the_module_as_it_was") {
  tessera::launch({.ranks = 1}, [&](tessera::World& world) {
    const auto net = std::make_shared<Perceptron>();
    const auto before = net->last->weight.detach().clone();
    const auto batch = networks::batch_of(perceptron, 0, 4);
    FullyShard model(world, net, blocks);
    check_error([&] { model.learn([] { throw UsageError("no such input"); }); }, "no such input");
    CHECK(torch::equal(net->last->weight, before));
    check_error([&] { model.learn([&] { net->first(batch.input); }); },
                "the pass that was learnt uses no parameter of unit");
    model.learn([&] { net->forward(batch.input); });
    model.finalize(tessera::AdamW{});
    model.backward(model->forward(batch.input).sum());
    model.update();
  });
}

TEST_CASE("units_that_cannot_be_are_errors") {
  tessera::launch({.ranks = 1}, [&](tessera::World& world) {
    const auto shard = [&](tessera::torch::Units units) {
      FullyShard(world, std::make_shared<Perceptron>(), {.units = units});
    };
    check_error([&] { shard(tessera::torch::named({"first", "last", "first"})); }, "unit \"first\" is named twice");
    check_error([&] { shard(tessera::torch::named({"blocks.7"})); },
                "there is no submodule \"blocks.7\": \"blocks\" has 0, 1, 2");
    check_error([&] { shard(tessera::torch::children_of("layers")); }, "the module has first, blocks, last");
  });
}

TEST_CASE("a_gradient_that_does_not_come_is_named_unless_it_may_be_missing") {
  struct Halves : torch::nn::Module {
    Halves() {
      used = register_module("used", torch::nn::Linear(2, 2));
      unused = register_parameter("used_not", torch::ones({3}));
    }
    torch::Tensor forward(const torch::Tensor& x) { return used(x); }
    torch::nn::Linear used{nullptr};
    torch::Tensor unused;
  };
  const auto step = [](const std::vector<std::string>& may_be_unused) {
    tessera::launch({.ranks = 1}, [&](tessera::World& world) {
      FullyShard model(world, std::make_shared<Halves>(),
                       {.units = tessera::torch::named({}), .may_be_unused = may_be_unused});
      model.finalize(tessera::AdamW{});
      model.backward(model->forward(torch::ones({1, 2})).sum());
      model.update();
    });
  };
  check_error([&] { step({}); }, "the gradient of used_not was never asked for");
  CHECK_NOTHROW(step({"*_not"}));
}

TEST_CASE("a_sparse_gradient_is_an_error_that_names_the_parameter") {
  struct Words : torch::nn::Module {
    Words() { table = register_module("table", torch::nn::Embedding(torch::nn::EmbeddingOptions(9, 4).sparse(true))); }
    torch::Tensor forward(const torch::Tensor& words) { return table(words); }
    torch::nn::Embedding table{nullptr};
  };
  const auto job = [] {
    tessera::launch({.ranks = 1}, [](tessera::World& world) {
      FullyShard model(world, std::make_shared<Words>());
      model.finalize(tessera::AdamW{});
      model.backward(model.forward(torch::tensor({1, 2})).sum());
    });
  };
  check_error(job, "the gradient of table.weight is sparse");
}

TEST_CASE("a_module_made_under_inference_mode_is_an_error") {
  tessera::launch({.ranks = 1}, [](tessera::World& world) {
    for (const bool deferred : {false, true}) {
      std::shared_ptr<Perceptron> net;
      {
        const c10::InferenceMode inference;
        net = deferred ? tessera::torch::make_deferred<Perceptron>(1) : std::make_shared<Perceptron>();
      }
      check_error([&] { FullyShard model(world, net, blocks); },
                  "parameter first.weight was made under torch::InferenceMode");
    }
  });
}

// All three ranks end `body` with an error that has these words, and so does the job, whose error's text is returned.
template <typename JobError = std::exception, typename Body>
std::string check_that_all_end(const std::string& words, Body body,
                               std::chrono::milliseconds timeout = tessera::LaunchOptions{}.timeout) {
  std::mutex mutex;
  std::vector<std::string> ends;
  std::string text;
  try {
    tessera::launch({.ranks = 3, .timeout = timeout}, [&](tessera::World& world) {
      try {
        body(world);
      } catch (const std::exception& error) {
        const std::lock_guard lock(mutex);
        ends.emplace_back(error.what());
        throw;
      }
    });
  } catch (const JobError& error) {
    text = error.what();
  }
  CHECK(ends.size() == 3);
  ends.push_back(text);
  for (const std::string& end : ends) CHECK_MESSAGE(end.find(words) != std::string::npos, end);
  return text;
}

// Rank 0's alone has changed when its values are asked for; it catches the error and goes on.
TEST_CASE("an_error_amid_initial_values_reaches_all_ranks_also_where_it_is_caught") {
  struct Copying : torch::nn::Module {
    explicit Copying(const torch::Tensor& source) {
      const torch::NoGradGuard no_grad;
      for (const char* name : {"first", "second"}) {
        layer = register_module(name, torch::nn::Linear(600, 600));
        layer->weight.copy_(source);
      }
    }
    torch::nn::Linear layer{nullptr};
  };
  std::mutex mutex;
  std::vector<std::string> ends;
  const auto job = [&] {
    tessera::launch({.ranks = 3}, [&](tessera::World& world) {
      const torch::Tensor source = torch::zeros({600, 600});
      FullyShard model(world, tessera::torch::make_deferred<Copying>(1, source));
      if (world.rank() == 0) source.add_(1);
      try {
        model.finalize(tessera::AdamW{});
      } catch (const std::exception& error) {
        const std::lock_guard lock(mutex);
        ends.emplace_back(error.what());
      }
      world.barrier("the end");
    });
  };
  const std::string words = "a tensor that aten::copy_ was given where a module was deferred has changed since";
  CHECK_THROWS_WITH(job(), doctest::Contains(words.c_str()));
  CHECK(ends.size() == 3);
  for (const std::string& end : ends) CHECK_MESSAGE(end.find(words) != std::string::npos, end);
}

// Rank 1 of three does `act` after a step, and the others go on: all end with the same words.
template <typename Act>
void check_all_ranks(const std::string& words, Act act,
                     std::chrono::milliseconds timeout = tessera::LaunchOptions{}.timeout) {
  for (const tessera::Strategy strategy : {tessera::Strategy::ddp, tessera::Strategy::fsdp}) {
    CAPTURE(tessera::to_string(strategy));
    const auto body = [&](tessera::World& world) {
      const auto net = std::make_shared<Perceptron>();
      FullyShard model(world, net, blocks, {.strategy = strategy});
      model.finalize(tessera::AdamW{});
      const auto batch = networks::batch_of(perceptron, 0, 4);
      for (int step = 0; step < 2; ++step) {
        if (step == 1 && world.rank() == 1) act(model, *net, batch.input);
        model.backward(model.forward(batch.input).sum());
        model.update();
      }
      model.sharded().synchronize();
      world.barrier("the end");
    };
    check_that_all_end(words, body, timeout);
  }
}

TEST_CASE("wrong_use_on_one_rank_ends_all_ranks_with_the_same_words") {
  check_all_ranks("rank 1: aten::linalg_vector_norm was to use parameter last.weight outside of a pass",
                  [](auto&, Perceptron& net, const auto&) { torch::linalg_vector_norm(net.last->weight, 2); });
  check_all_ranks("rank 1: backward() came without a forward pass before it",
                  [](auto& model, auto&, const auto&) { model.backward(torch::zeros({}, torch::requires_grad())); });
  check_all_ranks("call model.backward(loss), not loss.backward()",
                  [](auto& model, auto&, const auto& input) { model.forward(input).sum().backward(); });
  check_all_ranks(
      "unit root came behind root.2, an order that is not learnt, as it must on every rank (learn() knows the longest)",
      [](auto& model, auto&, const auto& input) {
        model.pass([&](Perceptron& net) {
          net.last(torch::ones({1, 13}));
          return net.first(input);
        });
      },
      std::chrono::seconds(3));
  check_all_ranks("parameter blocks.3.weight of the module is not the one that was sharded",
                  [](auto& model, Perceptron& net, const auto& input) {
                    net.blocks->push_back(torch::nn::Linear(13, 13));
                    model.forward(input);
                  });
  check_all_ranks(
      "new plan, because requires_grad of first.bias changed, as it must on every rank",
      [](auto& model, Perceptron& net, const auto& input) {
        net.first->bias.set_requires_grad(false);
        model.forward(input);
      },
      std::chrono::seconds(3));
}

TEST_CASE("a_unit_named_twice_ends_all_ranks_with_the_same_words") {
  for (const bool on_all : {false, true}) {
    check_that_all_end<UsageError>("unit \"first\" is named twice", [&](tessera::World& world) {
      const bool twice = on_all || world.rank() == 1;
      const std::vector<std::string> once{"first", "last"};
      const std::vector<std::string> again{"first", "last", "first"};
      FullyShard model(world, std::make_shared<Perceptron>(), {.units = tessera::torch::named(twice ? again : once)});
      model.finalize(tessera::AdamW{});
    });
  }
}

TEST_CASE("ranks_that_name_or_learn_other_units_all_get_an_error") {
  struct EitherWay : torch::nn::Module {
    EitherWay() {
      a = register_module("a", torch::nn::Linear(2, 2));
      b = register_module("b", torch::nn::Linear(2, 2));
    }
    torch::Tensor forward(const torch::Tensor& x) { return turned ? a(b(x)) : b(a(x)); }
    torch::nn::Linear a{nullptr}, b{nullptr};
    bool turned = false;
  };
  std::atomic<int> errors = 0;
  const auto job = [&](bool learns) {
    tessera::launch({.ranks = 3}, [&](tessera::World& world) {
      const auto net = std::make_shared<EitherWay>();
      net->turned = learns && world.rank() == 2;
      const auto units = !learns && world.rank() == 2 ? std::vector<std::string>{} : std::vector<std::string>{"a"};
      FullyShard model(world, net, {.units = tessera::torch::named(units)});
      if (learns) model.learn([&] { net->forward(torch::ones({1, 2})); });
      try {
        model.finalize(tessera::AdamW{});
      } catch (const tessera::Error&) {
        ++errors;
        throw;
      }
    });
  };
  for (const bool learns : {false, true}) {
    errors = 0;
    CHECK_THROWS_AS(job(learns), tessera::CommunicationError);
    CHECK(errors == 3);
  }
}

TEST_CASE("an_error_of_torchs_says_in_which_unit_it_came_and_has_no_backtrace") {
  std::string text;
  try {
    tessera::launch({.ranks = 1}, [](tessera::World& world) {
      FullyShard model(world, std::make_shared<networks::Convolutions>(),
                       {.units = tessera::torch::children_of("layers")}, {.precision = tessera::bf16_mixed});
      model.finalize(tessera::Sgd{});
      model.forward(torch::ones({4, 1, 6, 6}, torch::kBFloat16));
    });
  } catch (const c10::Error& error) {
    text = error.what();
  }
  CAPTURE(text);
  for (const char* words :
       {"expected scalar type BFloat16", "in a window of unit layers.norm, which shows parameters in bf16",
        "ModuleOptions::per_unit"}) {
    CHECK(text.find(words) != std::string::npos);
  }
  CHECK(text.find("frame #") == std::string::npos);
}

TEST_CASE("an_exception_in_a_forward_pass_of_one_rank_ends_all_ranks_with_it") {
  struct Faulty : Perceptron {
    torch::Tensor forward(const torch::Tensor& input) override {
      const auto y = Perceptron::forward(input);
      if (fails) throw std::runtime_error("no such sample");
      return y;
    }
    bool fails = false;
  };
  for (const tessera::Strategy strategy : {tessera::Strategy::ddp, tessera::Strategy::fsdp}) {
    const std::string text = check_that_all_end("no such sample", [&](tessera::World& world) {
      const auto net = std::make_shared<Faulty>();
      FullyShard model(world, net, blocks, {.strategy = strategy});
      model.finalize(tessera::AdamW{});
      const auto batch = networks::batch_of(perceptron, 0, 4);
      net->fails = world.rank() == 1;
      model.backward(model.forward(batch.input).sum());
      model.update();
      model.sharded().synchronize();
    });
    CHECK(text == "rank 1: no such sample");
  }
}

}  // namespace wrong_use_test
