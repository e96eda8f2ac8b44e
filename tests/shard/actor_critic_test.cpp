// An actor and a critic, two programs of one model that were recorded: the critic learns what reward to expect in a
// state, and the actor to act better than that (Williams 1992). Against plain loops in double precision, and bit for
// bit between strategies.
#include <doctest/doctest.h>

#include <array>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "../extent.hpp"
#include "plain_layer.hpp"
#include "tessera/optim/sgd.hpp"
#include "toy_model.hpp"

namespace actor_critic_test {

using tessera::FullyShard;
using tessera::FullyShardOptions;
using tessera::Strategy;
using toy::Values;

constexpr std::size_t rows = 3, inputs = 2, hidden = 11;
constexpr int rounds = 4;
constexpr float critic_rate = 0.02f, actor_rate = 0.05f, momentum = 0.5f, deviation = 0.3f;

// A Play is what is seen, and by how much an action differs from the actor's.
struct Play {
  Play(int step, std::size_t micro, int rank)
      : states(toy::sample(rows * inputs, step, micro, rank, 0)), noise(toy::sample(rows, step, micro, rank, 1)) {
    for (float& each : noise) each *= deviation;
  }
  Values states, noise;
};

// The best action is x0 - x1 / 2.
template <typename Number>
Number reward(const Play& play, std::size_t row, Number action) {
  const Number off = action - (Number(play.states[row * inputs]) - Number(0.5) * Number(play.states[row * inputs + 1]));
  return Number(1) - off * off;
}

enum class Learns { critic, actor };
// The gradient of the expected reward's squared error, or of minus the log-likelihood times what was gained.
template <typename Number>
Number gradient(Learns who, const Play& play, std::size_t row, Number action, Number expected) {
  const Number noise = Number(play.noise[row]);
  const Number gained = reward(play, row, action + noise) - expected;
  const Number slope =
      who == Learns::critic ? Number(-2) * gained : -gained * noise / (Number(deviation) * Number(deviation));
  return slope / Number(rows);
}

using Weights = std::map<std::string, Values>;

// Two steps of the critic for each of the actor.
Learns learner(int step) { return step % 3 == 2 ? Learns::actor : Learns::critic; }

struct Player {
  Player(tessera::World& in_world, const FullyShardOptions& options) : world(in_world), model(in_world, options) {
    for (std::size_t l = 0; l < 2; ++l) {
      const std::string number = std::to_string(l);
      model.add(*actor[l], "actor." + number);
      model.add(*critic[l], "critic." + number);
    }
    judging = &model.add_program({.name = "judge", .pass = [this] { pass(Learns::critic, 0, 0); }});
    acting = &model.add_program({.name = "act",
                                 .pass = [this] { pass(Learns::actor, 2, 0); },
                                 .optimizer = tessera::Sgd{.learning_rate = actor_rate, .momentum = momentum}});
    model.finalize(tessera::AdamW{.learning_rate = critic_rate, .weight_decay = 0.0f});
  }

  using Net = std::array<std::unique_ptr<toy::Layer<float>>, 2>;
  static Net net() {
    return {std::make_unique<toy::Layer<float>>(inputs, hidden, rows),
            std::make_unique<toy::Layer<float>>(hidden, 1, rows)};
  }
  const Values& forward(Net& net, const Values& x) { return model.forward(*net[1], model.forward(*net[0], x)); }

  void pass(Learns who, int step, std::size_t micro) {
    play[micro] = std::make_unique<Play>(step, micro, world.rank());
    const Values& action = forward(actor, play[micro]->states);
    const Values& expected = forward(critic, play[micro]->states);
    model.stream().submit([who, &action, &expected, &now = *play[micro], &dy = dys[micro], scale = model.loss_scale()] {
      dy.resize(rows);
      for (std::size_t r = 0; r < rows; ++r) dy[r] = gradient(who, now, r, action[r], expected[r]) * *scale;
    });
    Net& learns = who == Learns::critic ? critic : actor;
    model.backward(*learns[0], model.backward(*learns[1], dys[micro]));
  }
  void step(int number, std::size_t micro_batches) {
    const Learns who = learner(number);
    model.begin(who == Learns::critic ? *judging : *acting);
    for (std::size_t micro = 0; micro < micro_batches; ++micro) pass(who, number, micro);
    model.update();
    model.synchronize();
  }

  tessera::World& world;
  Net actor = net(), critic = net();
  std::array<std::unique_ptr<Play>, 2> play;
  std::array<Values, 2> dys;
  FullyShard model;
  const tessera::TrainingProgram* judging = nullptr;
  const tessera::TrainingProgram* acting = nullptr;
};

Weights train(int ranks, const FullyShardOptions& options) {
  Weights weights;
  std::mutex mutex;
  tessera::launch({.ranks = ranks, .timeout = std::chrono::seconds(20)}, [&](tessera::World& world) {
    Player player(world, options);
    for (int step = 0; step < 3 * rounds; ++step) player.step(step, options.micro_batches);
    toy::collect_weights(player.model, weights, mutex);
  });
  return weights;
}

struct PlainNet {
  explicit PlainNet(const std::string& name)
      : layers{plain::Layer(name + ".0", inputs, hidden), plain::Layer(name + ".1", hidden, 1)} {}
  const plain::Numbers& forward(const plain::Numbers& input) {
    x = input;
    h = layers[0].forward(x);
    return y = layers[1].forward(h);
  }
  void backward(const plain::Numbers& dy) { layers[0].backward(x, h, layers[1].backward(h, y, dy)); }
  std::array<plain::Layer, 2> layers;
  plain::Numbers x, h, y;
};

std::map<std::string, PlainNet> train_plainly(int ranks, std::size_t micro_batches) {
  std::map<std::string, PlainNet> nets;
  PlainNet& actor = nets.emplace("actor", PlainNet("actor")).first->second;
  PlainNet& critic = nets.emplace("critic", PlainNet("critic")).first->second;
  int judged = 0;
  for (int step = 0; step < 3 * rounds; ++step) {
    const Learns who = learner(step);
    PlainNet& learns = who == Learns::critic ? critic : actor;
    for (plain::Layer& layer : learns.layers) layer.clear();
    for (std::size_t micro = 0; micro < micro_batches; ++micro) {
      for (int rank = 0; rank < ranks; ++rank) {
        const Play play(step, micro, rank);
        const plain::Numbers action = actor.forward(plain::numbers(play.states));
        const plain::Numbers expected = critic.forward(plain::numbers(play.states));
        plain::Numbers dy(rows);
        for (std::size_t r = 0; r < rows; ++r) dy[r] = gradient(who, play, r, action[r], expected[r]);
        learns.backward(dy);
      }
    }
    const plain::Rule rule = who == Learns::critic ? plain::adamw(double(critic_rate), ++judged)
                                                   : plain::sgd(double(actor_rate), double(momentum));
    for (plain::Layer& layer : learns.layers) layer.update(double(ranks) * double(micro_batches), rule);
  }
  return nets;
}

void check_near(const Values& values, const plain::Numbers& expected) {
  REQUIRE(values.size() == expected.size());
  for (std::size_t i = 0; i < values.size(); ++i) CHECK(values[i] == doctest::Approx(expected[i]).epsilon(1e-5));
}

TEST_CASE("an_actor_and_a_critic_train_as_in_a_plain_loop") {
  for (const int ranks : {1, 2, 3, 4}) {
    for (const std::size_t micro_batches : {1u, 2u}) {
      FullyShardOptions options;
      options.micro_batches = micro_batches;
      const Weights weights = train(ranks, options);
      CHECK(weights.size() == 8);
      for (const auto& entry : train_plainly(ranks, micro_batches)) {
        for (std::size_t l = 0; l < 2; ++l) {
          const std::string name = entry.first + "." + std::to_string(l);
          INFO(name << " on " << ranks << " ranks, " << micro_batches << " micro-batches");
          check_near(weights.at(name + ".weight"), entry.second.layers[l].weight);
          check_near(weights.at(name + ".bias"), entry.second.layers[l].bias);
        }
      }
    }
  }
}

TEST_CASE("an_actor_and_a_critic_are_bitwise_equal_between_strategies") {
  for (const int ranks : tests::rank_counts({1, 2, 3, 4})) {
    const Weights reference = train(ranks, {.strategy = Strategy::ddp});
    for (const Strategy strategy : tessera::flat_strategies) {
      FullyShardOptions options{.strategy = strategy};
      options.diagnostics = {.poison = true, .touch = true, .queue_compute = true};
      const Weights weights = train(ranks, options);
      for (const auto& entry : reference) {
        INFO(entry.first << ", " << to_string(strategy) << " on " << ranks << " ranks");
        CHECK(toy::same_bits(weights.at(entry.first), entry.second));
      }
    }
  }
}

}  // namespace actor_critic_test
