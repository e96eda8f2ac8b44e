// The layers as modules in real windows: gradients through a whole network, the same bits for every strategy, and
// losses that fall.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include "../data/allocation_counter.hpp"
#include "memory_windows.hpp"
#include "reference.hpp"
#include "tessera/base/error.hpp"
#include "tessera/comm/run.hpp"
#include "tessera/device/arena.hpp"
#include "tessera/nn/counting_model.hpp"
#include "tessera/nn/cross_entropy.hpp"
#include "tessera/nn/gelu.hpp"
#include "tessera/nn/linear.hpp"
#include "tessera/nn/relu.hpp"
#include "tessera/optim/sgd.hpp"
#include "tessera/shard/fully_shard.hpp"

using namespace tessera;
using namespace tessera::nn;

namespace modules_test {

constexpr std::size_t in = 5;
constexpr std::size_t hidden = 7;
constexpr std::size_t classes = 3;
constexpr std::size_t batch = 11;

// relu(linear), in place.
template <typename T>
class First final : public Module {
 public:
  void visit(ModuleVisitor& visitor) override { visitor("linear", linear); }

  struct Saved {
    typename Linear<T>::Saved linear;
    typename Relu<T>::Saved relu;
  };
  Saved forward(Window& window, ActivationStack& stack, MatrixView<const T> x, MatrixView<T> y) {
    return {.linear = linear.forward(window, stack, x, y), .relu = relu.forward(window, stack, y, y)};
  }
  void backward(Window& window, ActivationStack& stack, const Saved& saved, MatrixView<T> dy) {
    relu.backward(window, stack, saved.relu, dy, dy);
    linear.backward(window, stack, saved.linear, dy, {});
  }

 private:
  Linear<T> linear{in, hidden};
  Relu<T> relu;
};

// gelu(linear without bias).
template <typename T>
class Second final : public Module {
 public:
  void visit(ModuleVisitor& visitor) override { visitor("linear", linear); }

  struct Saved {
    typename Linear<T>::Saved linear;
    typename Gelu<T>::Saved gelu;
  };
  Saved forward(Window& window, ActivationStack& stack, MatrixView<const T> x, MatrixView<T> y) {
    const MatrixView<T> sums = stack.push<T>(y.rows, y.columns);
    return {.linear = linear.forward(window, stack, x, sums), .gelu = gelu.forward(window, stack, sums, y)};
  }
  void backward(Window& window, ActivationStack& stack, const Saved& saved, MatrixView<T> dy, MatrixView<T> dx) {
    gelu.backward(window, stack, saved.gelu, dy, dy);
    linear.backward(window, stack, saved.linear, dy, dx);
  }

 private:
  Linear<T> linear{hidden, hidden, {.bias = false}};
  Gelu<T> gelu;
};

template <typename T>
class Head final : public Module {
 public:
  void visit(ModuleVisitor& visitor) override { visitor("linear", linear); }

  struct Saved {
    typename Linear<T>::Saved linear;
    typename CrossEntropy<T>::Saved loss;
    MatrixView<T> logits;
  };
  Saved forward(Window& window, ActivationStack& stack, MatrixView<const T> x, const Targets& targets, float* loss) {
    const MatrixView<T> logits = stack.push<T>(x.rows, classes);
    return {.linear = linear.forward(window, stack, x, logits),
            .loss = loss_.forward(window, stack, logits, targets, loss),
            .logits = logits};
  }
  void backward(Window& window, ActivationStack& stack, const Saved& saved, MatrixView<T> dx) {
    loss_.backward(window, stack, saved.loss, saved.logits);
    linear.backward(window, stack, saved.linear, saved.logits, dx);
  }

 private:
  Linear<T> linear{hidden, classes};
  CrossEntropy<T> loss_;
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
  template <typename T>
  MatrixView<const T> view() {
    if constexpr (std::is_same_v<T, float>) {
      return {x.data(), batch, in};
    } else {
      rounded.resize(x.size() * sizeof(T));
      T* const data = reinterpret_cast<T*>(rounded.data());
      for (std::size_t i = 0; i < x.size(); ++i) data[i] = T(x[i]);
      return {data, batch, in};
    }
  }
  Targets targets() const { return {.labels = labels, .weights = weights}; }

  std::vector<float> x;
  std::vector<std::byte> rounded;
  std::vector<std::int32_t> labels;
  std::vector<float> weights;
};

// The layers, and a pass over them with windows or without.
template <typename T>
struct Layers {
  template <typename Model>
  void pass(Model& model, ActivationStack& stack, MatrixView<const T> x, const Targets& targets, float* loss) {
    const ScratchScope scope(stack);
    const MatrixView<T> y1 = stack.push<T>(x.rows, hidden), y2 = stack.push<T>(x.rows, hidden);
    const auto saved1 = model.forward(first, stack, x, y1);
    const auto saved2 = model.forward(second, stack, y1, y2);
    const auto saved3 = model.forward(head, stack, y2, targets, loss);
    model.backward(head, stack, saved3, y2);
    const MatrixView<T> dy1 = stack.push<T>(x.rows, hidden);
    model.backward(second, stack, saved2, y2, dy1);
    model.backward(first, stack, saved1, dy1);
  }

  First<T> first;
  Second<T> second;
  Head<T> head;
};

template <typename T>
struct Network {
  Network(World& world, const FullyShardOptions& options, float rate)
      : memory(world.device(), planned()), stack({memory.data(), planned().count()}), model(world, options) {
    model.add(layers.first, "first");
    model.add(layers.second, "second");
    model.add(layers.head, "head");
    model.finalize(Sgd{.learning_rate = rate});
  }

  void step(Samples& samples, float* loss) {
    const MatrixView<const T> x = samples.view<T>();
    for (std::size_t k = 0; k < model.options().micro_batches; ++k) {
      layers.pass(model, stack, x, samples.targets(), loss);
    }
    model.update();
  }

  static Bytes planned() {
    ActivationStack counting;
    CountingModel model;
    Layers<T>().pass(model, counting, {nullptr, batch, in}, {}, nullptr);
    return counting.peak();
  }

  Layers<T> layers;
  Arena memory;
  ActivationStack stack;
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

struct NoParameters final : MemoryWindows {
  Stream& stream() override { return stream_; }
  Stream stream_ = immediate_stream();
};

struct Run {
  int ranks = 1;
  FullyShardOptions options = {};
};

// The losses of 12 steps, averaged over ranks.
template <typename T = float>
std::vector<float> train(const Run& run) {
  std::vector<float> losses(12);
  launch({.ranks = run.ranks}, [&](World& world) {
    Network<T> network(world, run.options, 0.3f);
    Samples samples(10 + static_cast<unsigned>(world.rank()));
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

TEST_CASE("gradients_through_a_network_are_the_central_differences") {
  launch({}, [](World& world) {
    Network<float> network(world, {}, 1.0f);
    Samples samples(3);
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
    for (const Strategy strategy : flat_strategies) {
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

TEST_CASE("networks_of_16_bits_learn_as_those_of_32_do") {
  const std::vector<float> expected = train({.ranks = 2});
  const std::vector<float> losses = train<bf16>({.ranks = 2, .options = {.precision = bf16_mixed}});
  for (std::size_t i = 0; i < losses.size(); ++i) CHECK(losses[i] == doctest::Approx(expected[i]).epsilon(0.02));
}

TEST_CASE("modules_allocate_nothing_after_their_first_step") {
  launch({}, [](World& world) {
    Network<float> network(world, {.micro_batches = 2}, 0.1f);
    Samples samples(3);
    float loss = 0.0f;
    for (int step = 0; step < 2; ++step) network.step(samples, &loss);
    network.model.synchronize();
    const std::size_t before = allocations_so_far();
    for (int step = 0; step < 5; ++step) network.step(samples, &loss);
    network.model.synchronize();
    CHECK(allocations_so_far() == before);
    CHECK(network.stack.peak() == Network<float>::planned());
    CHECK(network.stack.used() == Bytes(0));
  });
}

TEST_CASE("targets_that_do_not_fit_are_refused") {
  NoParameters memory;
  ActivationStack counting;
  CrossEntropy<float> loss;
  std::vector<float> logits(6);
  float value = 0.0f;
  const std::vector<std::int32_t> labels(3);
  CHECK_THROWS_WITH_AS(
      memory.forward(loss, counting, matrix(logits, 2, 3), Targets{.labels = labels, .weights = {}}, &value),
      "cross entropy: 2 rows of logits, but 3 labels and 0 weights", UsageError);
}

}  // namespace modules_test
