// Stages of a pipeline on ranks with a role each: what goes from one to the next are messages in their windows, and two
// micro-batches are on their way at once. The weights are those of one rank that has all stages.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tessera/base/error.hpp"
#include "tessera/comm/run.hpp"
#include "tessera/optim/sgd.hpp"
#include "tessera/shard/fully_shard.hpp"

using namespace tessera;

namespace pipeline_test {

constexpr std::size_t width = 5, steps = 4, in_flight = 2;
using Values = std::vector<float>;
using enum CollectiveKind;

// y = tanh(W x). A stage that is not the first receives x, and one that is not the last sends y.
struct Stage final : Module {
  Stage(bool is_first, bool is_last) : first(is_first), last(is_last) {}
  void visit(ModuleVisitor& visitor) override {
    visitor("weight", weight);
    if (!first) visitor("in.x", x_in), visitor("in.dx", dx_in);
    if (!last) visitor("out.x", x_out), visitor("out.dx", dx_out);
  }
  Values forward(Window& window, const Values& sample, std::size_t m) {
    x[m] = first ? sample : received(window, x_in);
    y[m].assign(width, 0.0f);
    const std::span<const float> w = window.parameter(weight);
    for (std::size_t o = 0; o < width; ++o) {
      for (std::size_t k = 0; k < width; ++k) y[m][o] += w[o * width + k] * x[m][k];
      y[m][o] = std::tanh(y[m][o]);
    }
    if (!last) send_on(window, x_out, y[m]);
    return y[m];
  }
  Values backward(Window& window, const Values& given, std::size_t m) {
    const Values dy = last ? given : received(window, dx_out);
    Values dx(width);
    const std::span<const float> w = window.parameter(weight);
    const std::span<float> dw = window.gradient(weight);
    for (std::size_t i = 0; i < width * width; ++i) {
      const std::size_t o = i / width, k = i % width;
      const float dh = dy[o] * (1 - y[m][o] * y[m][o]);
      dw[i] = dh * x[m][k];
      dx[k] += dh * w[i];
    }
    if (!first) send_on(window, dx_in, dx);
    return dx;
  }

  static Values received(Window& window, const Collective& message) {
    CHECK_THROWS_WITH_AS(window.contribution<float>(message), doctest::Contains("nothing is written"), UsageError);
    const Collected<float> came = window.collect<float>(message);
    return {came.first, came.first + came.values};
  }
  static void send_on(Window& window, const Collective& message, const Values& values) {
    std::ranges::copy(values, window.contribution<float>(message).begin());
    window.collect<float>(message);
  }
  static CollectiveOptions message(CollectiveKind kind, bool forward) { return {kind, DType::fp32, forward, !forward}; }

  bool first, last;
  Parameter weight{{width, width}, Initial::fan_in(width)};
  Collective x_in{width, message(receive, true)}, x_out{width, message(send, true)};
  Collective dx_in{width, message(send, false)}, dx_out{width, message(receive, false)};
  Values x[in_flight], y[in_flight];
};

Values sample(std::size_t step, std::size_t s) {
  Values x(width);
  for (std::size_t i = 0; i < width; ++i) x[i] = std::cos(static_cast<float>(3 * step + i * (s + 2)));
  return x;
}
Values loss_gradient(Values y, const Values& x) {
  for (std::size_t i = 0; i < width; ++i) y[i] -= x[(i + 1) % width] / 2;
  return y;
}
std::string name_of(std::size_t stage) { return "stage" + std::to_string(stage); }

std::vector<Values> on_one_rank(std::size_t stages, std::size_t samples) {
  std::vector<Values> weights;
  launch({.ranks = 1}, [&](World& world) {
    std::vector<std::unique_ptr<Stage>> all;
    FullyShard model(world, {.micro_batches = samples});
    for (std::size_t s = 0; s < stages; ++s)
      model.add(*all.emplace_back(std::make_unique<Stage>(true, true)), name_of(s));
    model.finalize(Sgd{.learning_rate = 0.3f});
    for (std::size_t step = 0; step < steps; ++step) {
      for (std::size_t s = 0; s < samples; ++s) {
        Values x = sample(step, s);
        for (const auto& stage : all) x = model.forward(*stage, x, 0u);
        Values dy = loss_gradient(x, sample(step, s));
        for (auto stage = all.rbegin(); stage != all.rend(); ++stage) dy = model.backward(**stage, dy, 0u);
      }
      model.update();
    }
    for (const auto& stage : all) weights.push_back(model.whole(stage->weight));
  });
  return weights;
}

std::vector<Values> on_stages(std::size_t stages, std::size_t data, Strategy strategy) {
  std::vector<Values> weights(stages, Values(width * width));
  launch({.ranks = static_cast<int>(stages * data)}, [&](World& world) {
    const plan::MeshShape mesh{{Axis::pipeline, stages}, {Axis::shard, data}};
    std::vector<std::unique_ptr<Stage>> all;
    std::vector<std::unique_ptr<FullyShard>> models;
    std::vector<ModelRole> roles;
    using enum plan::WindowKind;
    for (std::size_t s = 0; s < stages; ++s) {
      Stage& stage = *all.emplace_back(std::make_unique<Stage>(s == 0, s + 1 == stages));
      FullyShard& model = *models.emplace_back(std::make_unique<FullyShard>(
          world,
          FullyShardOptions{.strategy = strategy, .mesh = mesh, .diagnostics = {.poison = true, .touch = true}}));
      const Unit* const unit = &model.add(stage, name_of(s));
      model.add_program({.windows = {{unit, forward}, {unit, forward}, {unit, backward}, {unit, backward}}});
      roles.push_back({name_of(s), &model, Sgd{.learning_rate = 0.3f}});
    }
    const std::size_t mine = finalize_roles(roles);
    CHECK(mine == static_cast<std::size_t>(world.rank()) / data);
    FullyShard& model = *models[mine];
    Stage& stage = *all[mine];
    const std::size_t begin = static_cast<std::size_t>(world.rank()) % data * in_flight;
    for (std::size_t step = 0; step < steps; ++step) {
      for (std::size_t m = 0; m < in_flight; ++m) model.forward(stage, sample(step, begin + m), m);
      for (std::size_t m = in_flight; m-- > 0;)
        model.backward(stage, loss_gradient(stage.y[m], sample(step, begin + m)), m);
      model.update({.weight = double(in_flight)});
    }
    for (const ParameterPiece& piece : model.pieces(model.unit(0)))
      std::ranges::copy(piece.values, weights[mine].begin() + static_cast<std::ptrdiff_t>(piece.first));
    CHECK_THROWS_WITH_AS(model.whole(stage.weight), doctest::Contains("where ranks have roles"), UsageError);
    CHECK_THROWS_WITH_AS(models[(mine + 1) % stages]->synchronize(), doctest::Contains("has another one"), UsageError);
  });
  return weights;
}

TEST_CASE("stages_of_a_pipeline_train_as_one_rank_does") {
  for (const std::size_t stages : {std::size_t{2}, std::size_t{3}, std::size_t{6}}) {
    for (const Strategy strategy : {Strategy::fsdp, Strategy::ddp}) {
      const std::size_t data = stages == 2 ? 2 : 1;
      const std::vector<Values> alone = on_one_rank(stages, data * in_flight),
                                parted = on_stages(stages, data, strategy);
      for (std::size_t s = 0; s < stages; ++s)
        for (std::size_t i = 0; i < width * width; ++i) CHECK(std::abs(alone[s][i] - parted[s][i]) < 1e-6f);
    }
  }
}

}  // namespace pipeline_test
