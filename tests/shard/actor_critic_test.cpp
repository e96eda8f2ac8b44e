// An actor and a critic, two programs of one model that were recorded: the critic learns what reward to expect in a
// state, and the actor to act better than that (Williams 1992). Against plain loops in double precision, and bit for
// bit between strategies.
#include <doctest/doctest.h>

#include <array>
#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "../extent.hpp"
#include "plain_layer.hpp"
#include "tessera/optim/sgd.hpp"
#include "toy_model.hpp"

namespace actor_critic_test {

using namespace tessera;
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

using toy::Weights;

// Two steps of the critic for each of the actor.
Learns learner(int step) { return step % 3 == 2 ? Learns::actor : Learns::critic; }

struct Player {
  Player(World& in_world, const FullyShardOptions& options) : world(in_world), model(in_world, options) {
    for (std::size_t l = 0; l < 2; ++l) {
      const std::string number = std::to_string(l);
      model.add(*actor[l], "actor." + number);
      model.add(*critic[l], "critic." + number);
    }
    judging = &model.add_program({.name = "judge", .pass = [this] { pass(Learns::critic, 0, 0); }});
    acting = &model.add_program({.name = "act",
                                 .pass = [this] { pass(Learns::actor, 2, 0); },
                                 .optimizer = Sgd{.learning_rate = actor_rate, .momentum = momentum}});
    model.finalize(AdamW{.learning_rate = critic_rate, .weight_decay = 0.0f});
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

  World& world;
  Net actor = net(), critic = net();
  std::array<std::unique_ptr<Play>, 2> play;
  std::array<Values, 2> dys;
  FullyShard model;
  const TrainingProgram* judging = nullptr;
  const TrainingProgram* acting = nullptr;
};

Weights train(int ranks, const FullyShardOptions& options) {
  Weights weights;
  launch({.ranks = ranks, .timeout = std::chrono::seconds(20)}, [&](World& world) {
    Player player(world, options);
    for (int step = 0; step < 3 * rounds; ++step) player.step(step, options.micro_batches);
    toy::collect_weights(player.model, weights);
  });
  return weights;
}

// Returns the actor and the critic.
std::array<plain::Chain, 2> train_plainly(int ranks, std::size_t micro_batches) {
  constexpr std::array<std::size_t, 3> widths = {inputs, hidden, 1};
  std::array<plain::Chain, 2> nets{plain::Chain("actor.", widths), plain::Chain("critic.", widths)};
  plain::Chain &actor = nets[0], &critic = nets[1];
  int judged = 0;
  for (int step = 0; step < 3 * rounds; ++step) {
    const Learns who = learner(step);
    plain::Chain& learns = who == Learns::critic ? critic : actor;
    learns.clear();
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
    learns.update(double(ranks) * double(micro_batches), rule);
  }
  return nets;
}

TEST_CASE("an_actor_and_a_critic_train_as_in_a_plain_loop") {
  for (const int ranks : {1, 2, 3, 4}) {
    for (const std::size_t micro_batches : {1u, 2u}) {
      FullyShardOptions options{.micro_batches = micro_batches};
      const Weights weights = train(ranks, options);
      CHECK(weights.size() == 8);
      INFO(ranks << " ranks, " << micro_batches << " micro-batches");
      for (const plain::Chain& net : train_plainly(ranks, micro_batches)) plain::check_near(weights, net);
    }
  }
}

TEST_CASE("an_actor_and_a_critic_are_bitwise_equal_between_strategies") {
  for (const int ranks : tests::rank_counts({1, 2, 3, 4})) {
    const Weights reference = train(ranks, {.strategy = Strategy::ddp});
    for (const Strategy strategy : flat_strategies) {
      FullyShardOptions options{.strategy = strategy};
      options.diagnostics = {.poison = true, .touch = true, .queue_compute = true};
      INFO(to_string(strategy) << " on " << ranks << " ranks");
      CHECK(toy::same_bits(train(ranks, options), reference));
    }
  }
}

}  // namespace actor_critic_test
