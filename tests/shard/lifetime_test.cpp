// Who may end before whom: modules and models, models and windows, worlds and models. What comes too late is an error
// that names it, and a module that is free again trains in another model.
#include <doctest/doctest.h>

#include <functional>
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

using tessera::FullyShard;
using tessera::UsageError;
using tessera::World;
using tessera::plan::WindowKind;
using Layer = toy::Layer<float>;

void alone(const std::function<void(World&)>& body) { tessera::launch({.ranks = 1}, body); }

void step(FullyShard& model, Layer& layer) {
  const toy::Values x(8, 0.5f), dy(10, 0.25f);
  model.forward(layer, x);
  model.backward(layer, dy);
  model.update();
  model.synchronize();
}

class WithState : public tessera::Module {
 public:
  void visit(tessera::ModuleVisitor& visitor) override {
    visitor("weight", weight);
    visitor("mean", mean);
    if (broken) visitor("again", weight);
  }
  tessera::Parameter weight{{3}, tessera::Initial::ones()};
  tessera::Buffer mean{{2}};
  bool broken = false;
};

TEST_CASE("a_module_trains_in_another_model_after_the_first_is_gone") {
  alone([](World& world) {
    Layer layer(4, 5, 2);
    for (int run = 0; run < 3; ++run) {
      FullyShard model(world);
      const tessera::Unit& unit = model.add(layer, "run" + std::to_string(run));
      CHECK(layer.weight.unit() == &unit);
      model.finalize(tessera::AdamW{});
      step(model, layer);
      CHECK(layer.weight.name() == "run" + std::to_string(run) + ".weight");
    }
    CHECK(layer.weight.unit() == nullptr);
  });
}

TEST_CASE("the_setting_that_a_memory_error_names_is_tried_with_the_same_modules") {
  tessera::launch({.ranks = 4}, [&](World& world) {
    std::vector<std::unique_ptr<Layer>> layers;
    for (int l = 0; l < 6; ++l) layers.push_back(std::make_unique<Layer>(64, 64, 1));
    const auto add_all = [&](FullyShard& model) {
      for (auto& layer : layers) model.add(*layer);
      model.finalize(tessera::AdamW{});
    };
    std::optional<FullyShard> small(std::in_place, world,
                                    tessera::FullyShardOptions{.strategy = tessera::Strategy::zero2});
    add_all(*small);
    const tessera::Bytes limit = tessera::plan::memory(small->plan()).peak;
    small.reset();
    std::string refusal;
    std::optional<tessera::Strategy> fits;
    for (const auto strategy : {tessera::Strategy::ddp, tessera::Strategy::zero2}) {
      try {
        FullyShard model(world, {.strategy = strategy, .memory_limit = limit});
        add_all(model);
        fits = strategy;
      } catch (const tessera::MemoryError& error) {
        if (refusal.empty()) refusal = error.what();
      }
    }
    CHECK_MESSAGE(refusal.find("strategy = zero2") != std::string::npos, refusal);
    CHECK(fits == tessera::Strategy::zero2);
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
    model.finalize(tessera::AdamW{});
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
    CHECK_THROWS_WITH_AS(model.finalize(tessera::AdamW{}),
                         doctest::Contains("unit layer: layer.bias has moved or ended since it was added"), UsageError);
  });
  alone([](World& world) {
    auto layer = std::make_unique<Layer>(4, 5, 2);
    FullyShard model(world);
    tessera::Unit& unit = model.add(*layer, "layer");
    model.finalize(tessera::AdamW{});
    layer.reset();
    CHECK_THROWS_WITH_AS(model.pieces(unit), doctest::Contains("layer.bias has moved or ended"), UsageError);
  });
}

TEST_CASE("a_closed_window_may_outlive_its_model") {
  alone([](World& world) {
    Layer layer(4, 5, 2);
    auto model = std::make_unique<FullyShard>(world);
    tessera::Unit& unit = model->add(layer, "layer");
    model->finalize(tessera::AdamW{});
    std::optional<tessera::Window> window(model->open(unit, WindowKind::forward));
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
      const std::optional<tessera::Window> inner(std::move(window));
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
    tessera::Unit& unit = model.add(layer, "layer");
    model.finalize(tessera::AdamW{});
    tessera::Window old = model.open(unit, WindowKind::forward);
    layer.forward(old, x);
    old.close();
    model.backward(layer, toy::Values(10, 0.25f));
    model.update();
    for (int again = 0; again < 4; ++again) {
      model.recompile();
      tessera::Window fresh = model.open(unit, WindowKind::forward);
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
  std::optional<tessera::Window> window;
  alone([&](World& world) {
    unfinished.emplace(world);
    model.emplace(world);
    tessera::Unit& unit = model->add(layer, "layer");
    model->finalize(tessera::AdamW{});
    step(*model, layer);
    window.emplace(model->open(unit, WindowKind::forward));
  });
  const auto says_so = doctest::Contains("a FullyShard was used after its World had ended");
  CHECK_THROWS_WITH_AS(model->update(), says_so, UsageError);
  CHECK_THROWS_WITH_AS(model->forward(layer, toy::Values(8, 0.5f)), says_so, UsageError);
  CHECK_THROWS_WITH_AS(model->world(), says_so, UsageError);
  CHECK_THROWS_WITH_AS(unfinished->finalize(tessera::AdamW{}), says_so, UsageError);
  CHECK_FALSE(window->is_open());
  CHECK_THROWS_WITH_AS(window->close(), doctest::Contains("after its model was gone"), UsageError);
}

}  // namespace lifetime_test
