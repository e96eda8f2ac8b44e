// Who may end before whom: modules and models, models and windows, worlds and models. What comes too late is an error
// that names it, and a module that is free again trains in another model.
#include <doctest/doctest.h>

#include <chrono>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "tessera/base/error.hpp"
#include "tessera/plan/memory.hpp"
#include "toy_model.hpp"

namespace lifetime_test {

using namespace tessera;
using plan::WindowKind;
using Layer = toy::Layer<float>;

void alone(const std::function<void(World&)>& body) { launch({.ranks = 1}, body); }

void step(FullyShard& model, Layer& layer) {
  const toy::Values x(8, 0.5f), dy(10, 0.25f);
  model.forward(layer, x);
  model.backward(layer, dy);
  model.update();
  model.synchronize();
}

class WithState : public Module {
 public:
  void visit(ModuleVisitor& visitor) override {
    visitor("weight", weight);
    visitor("mean", mean);
    if (broken) visitor("again", weight);
  }
  Parameter weight{{3}, Initial::ones()};
  Buffer mean{{2}};
  bool broken = false;
};

TEST_CASE("a_module_trains_in_another_model_after_the_first_is_gone") {
  alone([](World& world) {
    Layer layer(4, 5, 2);
    for (int run = 0; run < 3; ++run) {
      FullyShard model(world);
      const Unit& unit = model.add(layer, "run" + std::to_string(run));
      CHECK(layer.weight.unit() == &unit);
      model.finalize(AdamW{});
      step(model, layer);
      CHECK(layer.weight.name() == "run" + std::to_string(run) + ".weight");
    }
    CHECK(layer.weight.unit() == nullptr);
  });
}

// Two layers, of which the first calls the second inside its window.
struct Around : Module {
  void visit(ModuleVisitor& visitor) override { visitor("layer", layer), visitor("inner", inner); }
  const toy::Values& forward(Window& window, const toy::Values& x) {
    return layer.forward(window, window.forward(inner, x));
  }
  const toy::Values& backward(Window& window, const toy::Values& dy) {
    return window.backward(inner, layer.backward(window, dy));
  }
  Layer layer{5, 4, 2}, inner{4, 5, 2};
};

// A rank's life of a model: it ends at the first place where `goes_on` says no, or after two steps and `at_the_end`.
void train_until(World& world, Around& around, const FullyShardOptions& options, const std::function<bool()>& goes_on,
                 const std::function<void(FullyShard&)>& at_the_end) {
  const toy::Values x(8, 0.5f + 0.1f * float(world.rank())), dy(8, 0.25f);
  FullyShard model(world, options);
  if (!goes_on()) return;
  model.add(around.inner, {.name = "inner", .recompute = options.prefetch == 0});
  model.add(around, "around");
  if (!goes_on()) return;
  model.add_program({.pass = [&] { model.forward(around, x), model.backward(around, dy); },
                     .evaluation_pass = [&] { model.evaluate(around, x); }});
  model.finalize(AdamW{});
  if (!goes_on()) return;
  for (int step = 0; step < 2; ++step) {
    for (int micro = 0; micro < 2; ++micro) {
      std::optional<Window> window(model.open(model.unit(1), WindowKind::forward));
      if (!goes_on()) return;  // the window ends first, still open
      const toy::Values& y = window->forward(around.inner, x);
      if (!goes_on()) return;
      around.layer.forward(*window, y);
      window->close();
      if (!goes_on()) return;
      model.backward(around, dy);
      if (!goes_on()) return;
    }
    model.update();
    if (!goes_on()) return;
    model.evaluate(around, x);
  }
  at_the_end(model);
}

// Ranks end their models at the same place, with work on every stream, the host ahead of it, or a pass half done.
TEST_CASE("a_model_may_end_at_any_point_and_its_modules_train_in_the_next") {
  for (const auto strategy : {Strategy::ddp, Strategy::fsdp}) {
    launch({.ranks = 3, .timeout = std::chrono::seconds(20)}, [&](World& world) {
      Around around;
      FullyShardOptions options{.strategy = strategy, .micro_batches = 2};
      options.diagnostics = {.delay_seed = 3, .poison = true, .queue_compute = true};
      const auto train = [&](std::size_t places) {
        options.prefetch = places % 2;
        toy::Weights weights;
        std::size_t left = places;
        const auto collect = [&](FullyShard& model) {
          for (const auto* layer : {&around.layer, &around.inner}) {
            weights[layer->weight.name()] = model.whole(layer->weight);
          }
        };
        train_until(
            world, around, options, [&] { return left-- > 0; }, collect);
        return weights;
      };
      constexpr std::size_t all = 1000;
      const auto fresh = train(all);
      CHECK(fresh.size() == 2);
      std::size_t places = 0;
      while (train(places).empty()) {
        CHECK(around.layer.weight.unit() == nullptr);
        if (++places % 5 == 0) CHECK(train(all) == fresh);
      }
      CHECK(places == 3 + 2 * (2 * 4 + 1));
      CHECK(train(all) == fresh);
    });
  }
}

TEST_CASE("modules_of_a_model_that_failed_train_in_the_next_job") {
  const auto job = [](std::vector<std::unique_ptr<Around>>& nets, int thrower) {
    toy::Weights weights;
    const std::string failure = toy::failure_of(3, [&](World& world) {
      Around& around = *nets[std::size_t(world.rank())];
      const auto goes_on = [&, places = 0]() mutable {
        if (++places == 8 && world.rank() == thrower) throw std::runtime_error("no such batch");
        return true;
      };
      train_until(world, around, {.micro_batches = 2}, goes_on,
                  [&](FullyShard& model) { toy::collect_weights(model, weights); });
    });
    CHECK(toy::contains(failure, thrower < 0 ? "" : "no such batch"));
    return weights;
  };
  const auto nets = [] {
    std::vector<std::unique_ptr<Around>> result;
    for (int rank = 0; rank < 3; ++rank) result.push_back(std::make_unique<Around>());
    return result;
  };
  std::vector<std::unique_ptr<Around>> fresh = nets(), failed = nets();
  const auto expected = job(fresh, -1);
  CHECK(expected.size() == 4);
  for (const int thrower : {0, 1, 2}) CHECK(job(failed, thrower).empty());
  CHECK(job(failed, -1) == expected);
}

TEST_CASE("the_setting_that_a_memory_error_names_is_tried_with_the_same_modules") {
  launch({.ranks = 4}, [&](World& world) {
    std::vector<std::unique_ptr<Layer>> layers;
    for (int l = 0; l < 6; ++l) layers.push_back(std::make_unique<Layer>(64, 64, 1));
    const auto add_all = [&](FullyShard& model) {
      for (auto& layer : layers) model.add(*layer);
      model.finalize(AdamW{});
    };
    std::optional<FullyShard> small(std::in_place, world, FullyShardOptions{.strategy = Strategy::zero2});
    add_all(*small);
    const Bytes limit = plan::memory(small->plan()).peak;
    small.reset();
    std::string refusal;
    std::optional<Strategy> fits;
    for (const auto strategy : {Strategy::ddp, Strategy::zero2}) {
      try {
        FullyShard model(world, {.strategy = strategy, .memory_limit = limit});
        add_all(model);
        fits = strategy;
      } catch (const MemoryError& error) {
        if (refusal.empty()) refusal = error.what();
      }
    }
    CHECK_MESSAGE(refusal.find("strategy = zero2") != std::string::npos, refusal);
    CHECK(fits == Strategy::zero2);
  });
}

TEST_CASE("an_add_that_fails_half_way_leaves_the_module_free") {
  alone([](World& world) {
    WithState module;
    module.broken = true;
    FullyShard model(world);
    CHECK_THROWS_WITH_AS(model.add(module, "first"),
                         doctest::Contains("already belongs to unit first as \"first.weight\""), UsageError);
    CHECK(module.weight.unit() == nullptr);
    CHECK(module.mean.unit() == nullptr);
    module.broken = false;
    model.add(module, "second");
    CHECK(module.mean.name() == "second.mean");
    model.finalize(AdamW{});
  });
}

TEST_CASE("a_module_in_two_models_is_an_error_that_names_the_other") {
  alone([](World& world) {
    Layer layer(4, 5, 2);
    FullyShard first(world), second(world);
    first.add(layer, "here");
    CHECK_THROWS_WITH_AS(second.add(layer, "there"),
                         doctest::Contains("unit there: \"weight\" is in another FullyShard, as here.weight"),
                         UsageError);
    CHECK(second.unit_count() == 0);
  });
}

TEST_CASE("a_module_that_moves_or_ends_after_add_is_named") {
  alone([](World& world) {
    std::vector<Layer> layers;
    layers.emplace_back(4, 5, 2);
    FullyShard model(world);
    model.add(layers[0], "layer");
    std::vector<Layer> elsewhere = {layers[0]};
    layers = std::vector<Layer>();  // as when the vector grows
    CHECK_THROWS_WITH_AS(model.finalize(AdamW{}),
                         doctest::Contains("unit layer: layer.bias has moved or ended since it was added"), UsageError);
  });
  alone([](World& world) {
    auto layer = std::make_unique<Layer>(4, 5, 2);
    FullyShard model(world);
    Unit& unit = model.add(*layer, "layer");
    model.finalize(AdamW{});
    layer.reset();
    CHECK_THROWS_WITH_AS(model.pieces(unit), doctest::Contains("layer.bias has moved or ended"), UsageError);
  });
}

TEST_CASE("a_closed_window_may_outlive_its_model") {
  alone([](World& world) {
    Layer layer(4, 5, 2);
    auto model = std::make_unique<FullyShard>(world);
    Unit& unit = model->add(layer, "layer");
    model->finalize(AdamW{});
    std::optional<Window> window(model->open(unit, WindowKind::forward));
    window->parameter(layer.weight);
    window->close();
    CHECK_THROWS_WITH_AS(window->stream(),
                         doctest::Contains("the forward window of unit layer was used after it had closed"),
                         UsageError);
    model.reset();
    CHECK_FALSE(window->is_open());
    CHECK_THROWS_WITH_AS(window->parameter(layer.weight),
                         doctest::Contains("the forward window of unit layer was used after its model was gone"),
                         UsageError);
    CHECK_THROWS_AS(window->close(), UsageError);
    try {  // what is left by an exception looks whether its window is open
      const std::optional<Window> inner(std::move(window));
      throw std::runtime_error("out");
    } catch (const std::runtime_error&) {
    }
    CHECK_FALSE(world.aborted());
  });
}

// The next executor may stand where the first one stood, and counts its windows from one as well.
TEST_CASE("a_closed_window_is_not_open_again_after_recompile") {
  alone([](World& world) {
    const toy::Values x(8, 0.5f);  // a layer keeps its argument until its backward pass
    Layer layer(4, 5, 2);
    FullyShard model(world);
    Unit& unit = model.add(layer, "layer");
    model.finalize(AdamW{});
    Window old = model.open(unit, WindowKind::forward);
    layer.forward(old, x);
    old.close();
    model.backward(layer, toy::Values(10, 0.25f));
    model.update();
    for (int again = 0; again < 4; ++again) {
      model.recompile();
      Window fresh = model.open(unit, WindowKind::forward);
      CHECK(fresh.is_open());
      CHECK_FALSE(old.is_open());
      CHECK_THROWS_AS(old.loss_scale(), UsageError);
      layer.forward(fresh, x);
      fresh.close();
      model.backward(layer, toy::Values(10, 0.25f));
      model.update();
    }
  });
}

TEST_CASE("a_model_used_after_its_world_ended_says_so") {
  Layer layer(4, 5, 2);
  std::optional<FullyShard> model;
  std::optional<FullyShard> unfinished;
  std::optional<Window> window;
  alone([&](World& world) {
    unfinished.emplace(world);
    model.emplace(world);
    Unit& unit = model->add(layer, "layer");
    model->finalize(AdamW{});
    step(*model, layer);
    window.emplace(model->open(unit, WindowKind::forward));
  });
  const auto says_so = doctest::Contains("a FullyShard was used after its World had ended");
  CHECK_THROWS_WITH_AS(model->update(), says_so, UsageError);
  CHECK_THROWS_WITH_AS(model->forward(layer, toy::Values(8, 0.5f)), says_so, UsageError);
  CHECK_THROWS_WITH_AS(model->world(), says_so, UsageError);
  CHECK_THROWS_WITH_AS(unfinished->finalize(AdamW{}), says_so, UsageError);
  CHECK_FALSE(window->is_open());
  CHECK_THROWS_WITH_AS(window->close(), doctest::Contains("after its model was gone"), UsageError);
}

}  // namespace lifetime_test
