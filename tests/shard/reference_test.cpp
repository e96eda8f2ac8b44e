// The runtime against a plain training loop that knows nothing of it: the first loss of one rank is exact, and several
// ranks average.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "plain_layer.hpp"
#include "toy_model.hpp"

namespace reference_test {

using namespace tessera;
using toy::Values;

constexpr std::size_t rows = 3;

struct Batch {
  Batch(const toy::Run& run, int step, std::size_t micro, int rank)
      : input(toy::sample(rows * run.widths.front(), step, micro, rank, 0)),
        target(toy::sample(rows * run.widths.back(), step, micro, rank, 1)) {}
  Values input, target;
};

struct Expected {
  std::vector<double> losses, norms;
  plain::Chain net;
};

// The same as toy::train() does: squared errors, clipping, and AdamW with weight decay.
Expected train_plainly(const toy::Run& run) {
  Expected result{{}, {}, plain::Chain("units.", run.widths)};
  plain::Chain& net = result.net;
  const double divisor = double(run.ranks) * double(run.options.micro_batches);
  for (int step = 0; step < run.steps; ++step) {
    net.clear();
    double loss = 0.0;
    for (std::size_t micro = 0; micro < run.options.micro_batches; ++micro) {
      for (int rank = 0; rank < run.ranks; ++rank) {
        const Batch batch(run, step, micro, rank);
        plain::Numbers dy = net.forward(plain::numbers(batch.input));
        for (std::size_t i = 0; i < dy.size(); ++i) {
          const double error = dy[i] - double(batch.target[i]);
          loss += error * error;
          dy[i] = 2.0 * error;
        }
        net.backward(dy);
      }
    }
    double squares = 0.0;
    for (const plain::Layer& layer : net.layers) squares += layer.squares(divisor);
    const double clip = std::min(1.0, double(run.clip) / std::sqrt(squares));
    net.update(divisor / clip, plain::adamw(0.01, step + 1, {.weight = 0.1}));
    result.norms.push_back(std::sqrt(squares));
    result.losses.push_back(loss / divisor);
  }
  return result;
}

// Sums are formed in another order here, so this is a tolerance; a lost factor of ranks or micro-batches is far outside
// of it.
TEST_CASE("every_strategy_follows_a_plain_training_loop") {
  for (const int ranks : {1, 2, 3}) {
    for (const std::size_t micro_batches : {1, 3}) {
      toy::Run run{.options = {.micro_batches = micro_batches}, .ranks = ranks, .steps = 6};
      const Expected expected = train_plainly(run);
      for (const Strategy strategy : flat_strategies) {
        for (const AccumulationMode mode : {AccumulationMode::reduced, AccumulationMode::local}) {
          run.options.strategy = strategy;
          run.options.accumulation = mode;
          CAPTURE(toy::describe(run));
          const toy::Result actual = toy::train(run);
          for (std::size_t step = 0; step < expected.losses.size(); ++step) {
            CHECK(std::bit_cast<float>(actual.losses[step]) == doctest::Approx(expected.losses[step]).epsilon(2e-5));
            CHECK(actual.norms[step] == doctest::Approx(expected.norms[step]).epsilon(2e-5));
          }
          plain::check_near(actual.weights, expected.net, 1e-4);
        }
      }
    }
  }
}

// In the order in which toy::Layer adds.
TEST_CASE("the_first_loss_of_one_rank_is_exact") {
  toy::Run run{.steps = 1};
  const Batch batch(run, 0, 0, 0);
  Values x = batch.input;
  for (const plain::Layer& layer : plain::Chain("units.", run.widths).layers) {
    Values y(rows * layer.out);
    for (std::size_t i = 0; i < y.size(); ++i) {
      const std::size_t row = i / layer.out, o = i % layer.out;
      float sum = float(layer.bias[o]);
      for (std::size_t k = 0; k < layer.in; ++k) sum += float(layer.weight[o * layer.in + k]) * x[row * layer.in + k];
      y[i] = std::tanh(sum);
    }
    x = y;
  }
  float loss = 0.0f;
  for (std::size_t i = 0; i < x.size(); ++i) loss += (x[i] - batch.target[i]) * (x[i] - batch.target[i]);
  for (const Strategy strategy : flat_strategies) {
    run.options.strategy = strategy;
    CHECK(toy::train(run).losses.front() == std::bit_cast<std::uint32_t>(loss));
  }
}

}  // namespace reference_test
