// The layers as modules in real windows: gradients through a whole network, the same bits for every strategy, and
// losses that fall.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include "../data/allocation_counter.hpp"
#include "reference.hpp"
#include "tessera/base/error.hpp"
#include "tessera/comm/run.hpp"
#include "tessera/nn/cross_entropy.hpp"
#include "tessera/nn/gelu.hpp"
#include "tessera/nn/linear.hpp"
#include "tessera/nn/relu.hpp"
#include "tessera/optim/sgd.hpp"
#include "tessera/shard/fully_shard.hpp"

using namespace tessera;
using namespace tessera::nn;

namespace {

constexpr std::size_t in = 5;
constexpr std::size_t hidden = 7;
constexpr std::size_t classes = 3;
constexpr std::size_t batch = 11;

// relu(linear), and gelu(linear without bias).
class First final : public Module {
 public:
  void visit(ModuleVisitor& visitor) override { visitor("linear", linear); }
  MatrixView forward(Window& window, ConstMatrixView x) { return relu.forward(window, linear.forward(window, x)); }
  void backward(Window& window, MatrixView dy) {
    linear.backward(window, relu.backward(window, dy), InputGradient::skip);
  }
  Linear linear{in, hidden};
  Relu relu;
};

class Second final : public Module {
 public:
  void visit(ModuleVisitor& visitor) override { visitor("linear", linear); }
  MatrixView forward(Window& window, ConstMatrixView x) { return gelu.forward(window, linear.forward(window, x)); }
  MatrixView backward(Window& window, MatrixView dy) { return linear.backward(window, gelu.backward(window, dy)); }
  Linear linear{hidden, hidden, {.bias = false}};
  Gelu gelu;
};

class Head final : public Module {
 public:
  void visit(ModuleVisitor& visitor) override { visitor("linear", linear); }
  void forward(Window& window, ConstMatrixView x, const Targets& targets, float* loss) {
    loss_.forward(window, linear.forward(window, x), targets, loss);
  }
  MatrixView backward(Window& window) { return linear.backward(window, loss_.backward(window)); }
  Linear linear{hidden, classes};

 private:
  CrossEntropy loss_;
};

struct Samples {
  explicit Samples(unsigned seed) : x(random_floats(batch * in, seed)), labels(batch), weights(batch, 1.0f) {
    // Learnable: the label is the largest of the first three features.
    for (std::size_t row = 0; row < batch; ++row) {
      const float* begin = x.data() + row * in;
      labels[row] = static_cast<std::int32_t>(std::max_element(begin, begin + classes) - begin);
    }
    weights[1] = 0.0f;
  }
  ConstMatrixView view() const { return {x.data(), batch, in}; }
  Targets targets() const { return {.labels = labels, .weights = weights}; }

  std::vector<float> x;
  std::vector<std::int32_t> labels;
  std::vector<float> weights;
};

struct Network {
  Network(World& world, const FullyShardOptions& options, float rate) : model(world, options) {
    model.add(first, "first");
    model.add(second, "second");
    model.add(head, "head");
    model.finalize(Sgd{.learning_rate = rate});
  }

  void step(const Samples& samples, float* loss) {
    for (std::size_t k = 0; k < model.options().micro_batches; ++k) {
      ConstMatrixView x = model.forward(first, samples.view());
      x = model.forward(second, x);
      model.forward(head, x, samples.targets(), loss);
      MatrixView dx = model.backward(head);
      dx = model.backward(second, dx);
      model.backward(first, dx);
    }
    model.update();
  }

  First first;
  Second second;
  Head head;
  FullyShard model;
};

// The masters of a world of one rank, unit by unit, in the order of the layout.
std::vector<float> masters(FullyShard& model) {
  std::vector<float> result;
  for (std::size_t u = 0; u < model.unit_count(); ++u) {
    for (const ParameterPiece& piece : model.pieces(model.unit(u))) {
      result.insert(result.end(), piece.values.begin(), piece.values.end());
    }
  }
  return result;
}

using Doubles = std::vector<double>;

Doubles linear_reference(const Doubles& x, const double* w, const double* b, std::size_t from, std::size_t to) {
  Doubles y(x.size() / from * to);
  for (std::size_t i = 0; i < y.size(); ++i) {
    const double* row = x.data() + i / to * from;
    y[i] = b == nullptr ? 0.0 : b[i % to];
    for (std::size_t k = 0; k < from; ++k) y[i] += row[k] * w[i % to * from + k];
  }
  return y;
}

// The network's loss in double precision, as a function of all its parameters.
double loss_reference(const Samples& samples, const Doubles& parameters) {
  const double* w1 = parameters.data();
  const double* b1 = w1 + hidden * in;
  const double* w2 = b1 + hidden;
  const double* w3 = w2 + hidden * hidden;
  const double* b3 = w3 + classes * hidden;
  Doubles x = linear_reference(widened(samples.x), w1, b1, in, hidden);
  for (double& value : x) value = std::max(value, 0.0);
  x = linear_reference(x, w2, nullptr, hidden, hidden);
  for (double& v : x) v = 0.5 * v * (1.0 + std::tanh(std::sqrt(2.0 / std::numbers::pi) * (v + 0.044715 * v * v * v)));
  const Doubles logits = linear_reference(x, w3, b3, hidden, classes);
  double loss = 0.0;
  for (std::size_t row = 0; row < batch; ++row) {
    double sum = 0.0;
    for (std::size_t c = 0; c < classes; ++c) sum += std::exp(logits[row * classes + c]);
    loss += static_cast<double>(samples.weights[row]) *
            (std::log(sum) - logits[row * classes + static_cast<std::size_t>(samples.labels[row])]);
  }
  return loss / static_cast<double>(batch);
}

struct Run {
  int ranks = 1;
  FullyShardOptions options = {};
};

// The losses of 12 steps, averaged over ranks.
std::vector<float> train(const Run& run) {
  std::vector<float> losses(12);
  launch({.ranks = run.ranks}, [&](World& world) {
    Network network(world, run.options, 0.3f);
    const Samples samples(10 + static_cast<unsigned>(world.rank()));
    for (float& kept : losses) {
      float loss = 0.0f;
      network.step(samples, &loss);
      network.model.synchronize();
      const float average = world.average(loss, "loss");
      if (world.rank() == 0) kept = average;
    }
  });
  return losses;
}

}  // namespace

TEST_CASE("gradients_through_a_network_are_the_central_differences") {
  launch({}, [](World& world) {
    Network network(world, {}, 1.0f);
    const Samples samples(3);
    const std::vector<float> before = masters(network.model);
    Doubles parameters = widened(before);
    float loss = 0.0f;
    network.step(samples, &loss);
    network.model.synchronize();
    CHECK(static_cast<double>(loss) == doctest::Approx(loss_reference(samples, parameters)).epsilon(1e-5));
    const std::vector<float> after = masters(network.model);
    const Doubles gradient = numeric_gradient(parameters, [&] { return loss_reference(samples, parameters); });
    REQUIRE(before.size() == gradient.size());
    for (std::size_t i = 0; i < gradient.size(); ++i) {
      CHECK(std::abs(static_cast<double>(before[i]) - static_cast<double>(after[i]) - gradient[i]) < 1e-5);
    }
  });
}

TEST_CASE("losses_fall_and_are_the_same_bits_for_every_strategy_and_stream_mode") {
  for (const int ranks : {1, 2, 3}) {
    const std::vector<float> expected = train({ranks, {.strategy = Strategy::ddp}});
    CHECK(expected.back() < expected.front());
    for (const Strategy strategy : {Strategy::ddp, Strategy::fsdp}) {
      for (const bool queued : {false, true}) {
        Run run{ranks, {.strategy = strategy}};
        run.options.diagnostics.queue_compute = queued;
        run.options.diagnostics.poison = true;
        if (queued) run.options.diagnostics.delay_seed = 7;
        CHECK(train(run) == expected);
      }
    }
  }
}

TEST_CASE("modules_allocate_nothing_after_their_first_step") {
  launch({}, [](World& world) {
    Network network(world, {.micro_batches = 2}, 0.1f);
    const Samples samples(3);
    float loss = 0.0f;
    for (int step = 0; step < 2; ++step) network.step(samples, &loss);
    network.model.synchronize();
    const std::size_t before = allocations_so_far();
    for (int step = 0; step < 5; ++step) network.step(samples, &loss);
    network.model.synchronize();
    CHECK(allocations_so_far() == before);
    CHECK(network.first.linear.activation_bytes() == Bytes(batch * hidden * sizeof(float)));
    CHECK(network.second.linear.activation_bytes() == Bytes(2 * batch * hidden * sizeof(float)));
  });
}

TEST_CASE("targets_that_do_not_fit_are_refused") {
  Stream stream = immediate_stream();
  CrossEntropy loss;
  std::vector<float> logits(6);
  float value = 0.0f;
  const std::vector<std::int32_t> labels(3);
  CHECK_THROWS_WITH_AS(loss.forward(stream, {logits.data(), 2, 3}, {.labels = labels, .weights = {}}, &value),
                       "cross entropy: 2 rows of logits, but 3 labels and 0 weights", UsageError);
}
