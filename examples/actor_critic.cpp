// Reinforcement learning with two programs of one model: the critic learns what reward to expect in a state, and the
// actor to act better than that (Williams 1992, with a learned baseline). Both act with the same nets; each program
// trains its own, with its own optimizer, and was recorded from the pass that trains. Try: ./actor_critic --ranks 3
#include <bit>
#include <cmath>
#include <cstdio>
#include <span>
#include <vector>

#include "tessera/tessera.hpp"

using tessera::Window;
using Values = std::vector<float>;
constexpr std::size_t batch = 16, inputs = 2, hidden = 11;

// y = v · tanh(W x + b), for each x of the batch
struct Net : tessera::Module {
  void visit(tessera::ModuleVisitor& to) override { to("weight", weight), to("bias", bias), to("output", output); }
  void forward(Window& window, const Values& x) {
    window.stream().submit(
        [this, &x, w = window.parameter(weight), b = window.parameter(bias), v = window.parameter(output)] {
          for (std::size_t r = 0; r < batch; ++r) {
            y[r] = 0;
            for (std::size_t k = 0; k < hidden; ++k) {
              float sum = b[k];
              for (std::size_t i = 0; i < inputs; ++i) sum += w[k * inputs + i] * x[r * inputs + i];
              y[r] += v[k] * (h[r * hidden + k] = std::tanh(sum));
            }
          }
        });
  }
  void backward(Window& window, const Values& x, const Values& dy) {
    window.stream().submit([this, &x, &dy, v = window.parameter(output), dw = window.gradient(weight),
                            db = window.gradient(bias), dv = window.gradient(output)] {
      for (std::size_t k = 0; k < hidden; ++k) {
        dw[k * inputs] = dw[k * inputs + 1] = db[k] = dv[k] = 0;
        for (std::size_t r = 0; r < batch; ++r) {
          const float t = h[r * hidden + k], inside = dy[r] * v[k] * (1 - t * t);
          dv[k] += dy[r] * t, db[k] += inside;
          for (std::size_t i = 0; i < inputs; ++i) dw[k * inputs + i] += inside * x[r * inputs + i];
        }
      }
    });
  }
  tessera::Parameter weight{{hidden, inputs}, tessera::Initial::fan_in(inputs)};
  tessera::Parameter bias{{hidden}, tessera::Initial::fan_in(inputs)};
  tessera::Parameter output{{hidden}, tessera::Initial::fan_in(hidden)};
  Values y = Values(batch), h = Values(batch * hidden);
};

// A Game is what this rank sees and does in a step. An action is the actor's, and some noise, by which it explores.
struct Game {
  Game(std::uint64_t step, const tessera::World& world) {
    const std::uint64_t first = batch * (step * std::uint64_t(world.size()) + std::uint64_t(world.rank()));
    tessera::Initial::uniform(-1, 1).fill(states, 3, "states", first * inputs);
    tessera::Initial::normal(0, 0.3f).fill(noise, 3, "noise", first);
  }
  float reward(std::size_t r, float action) const {  // the best action is x0 - x1 / 2
    const float error = action - (states[r * inputs] - 0.5f * states[r * inputs + 1]);
    return 1 - error * error;
  }
  Values states = Values(batch * inputs), noise = Values(batch);
};

void train(tessera::World& world, tessera::Strategy strategy) {
  Net actor, critic;
  tessera::FullyShard model(world, {.strategy = strategy});
  model.add(actor, "actor");
  model.add(critic, "critic");
  Values dy(batch);
  float off = 0;  // how far the actor's actions are from the best: squared, the mean over the batch
  // Both nets look at the states; `gradient` gets the reward of each, and how much better it was than expected.
  const auto play = [&](const Game& game, Net& learns, const auto& gradient) {
    model.forward(actor, game.states), model.forward(critic, game.states);
    model.synchronize();
    off = 0;
    for (std::size_t r = 0; r < batch; ++r) {
      const float reward = game.reward(r, actor.y[r] + game.noise[r]);
      dy[r] = gradient(r, reward - critic.y[r]) / batch;
      off += (1 - game.reward(r, actor.y[r])) / batch;
    }
    model.backward(learns, game.states, dy);
  };
  const auto judge = [&](const Game& game) {
    play(game, critic, [](std::size_t, float better) { return -2 * better; });
  };
  const auto act = [&](const Game& game) {
    play(game, actor, [&](std::size_t r, float better) { return -better * game.noise[r] / (0.3f * 0.3f); });
  };
  const auto& judging = model.add_program({.name = "judge", .pass = [&] { judge(Game(0, world)); }});
  const auto& acting = model.add_program({.name = "act",
                                          .pass = [&] { act(Game(0, world)); },
                                          .optimizer = tessera::Sgd{.learning_rate = 0.1f, .momentum = 0.5f}});
  model.finalize(tessera::AdamW{.learning_rate = 0.02f, .weight_decay = 0});
  float first = 0, last = 0;
  for (std::uint64_t step = 0; step < 600; ++step) {
    const Game game(step, world);
    model.begin(judging), judge(game), model.update();
    model.begin(acting), act(game), model.update();
    const float mean = world.average(off, "off");  // after the update has read what ends here
    model.synchronize();
    if (step < 3) first += mean / 3;
    if (step >= 580) last += mean / 20;
  }
  unsigned long long weights = 0;
  for (const tessera::Parameter* p : {&actor.weight, &actor.output, &critic.weight, &critic.output})
    for (const float value : model.whole(*p)) weights = weights * 31 + std::bit_cast<std::uint32_t>(value);
  if (world.rank() == 0)
    std::printf("%-6s weights %016llx  off by %.4f, then %.4f\n", to_string(strategy).data(), weights, first, last);
}

int main(int argc, char** argv) {
  const char* about = "An actor and its critic, two programs of one model; the same weights under every strategy.";
  return tessera::run(argc, argv, about, [](tessera::World& world) {
    for (const tessera::Strategy strategy : tessera::flat_strategies) train(world, strategy);
  });
}
