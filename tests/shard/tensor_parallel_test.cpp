// A perceptron cut over the axis `tensor`, its first layer by rows and its second by columns, is that of one rank: two
// sums in its windows, which the plan has like every other collective, are all that it takes.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>
#include <vector>

#include "tessera/comm/run.hpp"
#include "tessera/optim/sgd.hpp"
#include "tessera/plan/verify.hpp"
#include "tessera/shard/fully_shard.hpp"

using namespace tessera;

namespace tensor_parallel_test {

constexpr std::size_t width = 6, hidden = 12, batch = 5, steps = 6;
using Values = std::vector<float>;

// y = down tanh(up x), of which this rank has some of the hidden values.
struct Perceptron final : Module {
  explicit Perceptron(std::size_t slices)
      : own(hidden / slices), up({own, width}, Initial::zeros()), down({width, own}, Initial::zeros()) {}
  void visit(ModuleVisitor& visitor) override {
    visitor("up", up), visitor("down", down), visitor("y", y), visitor("dx", dx);
  }
  Values forward(Window& window, const Values& x) {
    const std::span<const float> u = window.parameter(up), d = window.parameter(down);
    for (std::size_t i = 0; i < batch * own; ++i) {
      const float* const row = &x[i / own * width];
      h[i] = std::tanh(std::inner_product(row, row + width, &u[i % own * width], 0.0f));
    }
    const std::span<float> part = window.contribution<float>(y);
    for (std::size_t i = 0; i < batch * width; ++i) {
      part[i] = 0;
      for (std::size_t k = 0; k < own; ++k) part[i] += d[i % width * own + k] * h[i / width * own + k];
    }
    return values_of(window.collect<float>(y));
  }
  Values backward(Window& window, const Values& x, const Values& dy) {
    const std::span<const float> u = window.parameter(up), d = window.parameter(down);
    const std::span<float> du = window.gradient(up), dd = window.gradient(down);
    const std::span<float> part = window.contribution<float>(dx);
    std::ranges::fill(du, 0.0f), std::ranges::fill(dd, 0.0f), std::ranges::fill(part, 0.0f);
    for (std::size_t b = 0; b < batch; ++b) {
      for (std::size_t i = 0; i < own; ++i) {
        const float value = h[b * own + i];
        float dh = 0;
        for (std::size_t o = 0; o < width; ++o) {
          dd[o * own + i] += dy[b * width + o] * value;
          dh += d[o * own + i] * dy[b * width + o] * (1 - value * value);
        }
        for (std::size_t k = 0; k < width; ++k) {
          du[i * width + k] += dh * x[b * width + k];
          part[b * width + k] += dh * u[i * width + k];
        }
      }
    }
    return values_of(window.collect<float>(dx));
  }

  static Values values_of(const Collected<float>& sum) { return {sum.first, sum.first + sum.values}; }
  static CollectiveOptions sum(bool forward) {
    return {CollectiveKind::all_reduce, DType::fp32, forward, !forward, false, Axis::tensor};
  }
  std::size_t own;
  Parameter up, down;
  Collective y{batch * width, sum(true)}, dx{batch * width, sum(false)};
  Values h = Values(batch * own);
};

// Every rank has all of it.
struct Shift final : Module {
  void visit(ModuleVisitor& visitor) override { visitor("shift", shift); }
  Values forward(Window& window, Values x) {
    for (std::size_t i = 0; i < x.size(); ++i) x[i] += window.parameter(shift)[i % width];
    return x;
  }
  void backward(Window& window, const Values& dy) {
    const std::span<float> gradient = window.gradient(shift);
    std::ranges::fill(gradient, 0.0f);
    for (std::size_t i = 0; i < dy.size(); ++i) gradient[i % width] += dy[i];
  }
  Parameter shift{{width}, Initial::constant(0.1f)};
};

struct Job {
  std::size_t data = 1, slices = 1;
  Strategy strategy = Strategy::fsdp;
};

// The weights after some steps, put together from the slices. One rank takes the samples of all as micro-batches.
std::vector<Values> train(const Job& job, std::size_t samples) {
  std::vector<Values> weights{Values(hidden * width), Values(width * hidden), Values(width)};
  launch({.ranks = static_cast<int>(job.data * job.slices)}, [&](World& world) {
    const std::size_t rank = static_cast<std::size_t>(world.rank()), slice = rank % job.slices;
    Shift shift;
    Perceptron net(job.slices);
    FullyShard model(world, {.strategy = job.strategy,
                             .mesh = plan::MeshShape{{Axis::shard, job.data}, {Axis::tensor, job.slices}},
                             .micro_batches = samples / job.data});
    model.add(shift, "shift");
    Unit& unit = model.add(net, UnitOptions{.name = "net", .apart = Axis::tensor});
    model.finalize(Sgd{.learning_rate = 0.1f});
    const auto at = [&](const Parameter& parameter, std::size_t i) {  // its place in the whole matrix
      return &parameter == &net.up ? slice * net.own * width + i : i / net.own * hidden + slice * net.own + i % net.own;
    };
    for (const ParameterPiece& piece : model.pieces(unit)) {
      for (std::size_t i = 0; i < piece.values.size(); ++i) {
        piece.values[i] = 0.4f * std::sin(static_cast<float>(3 * at(*piece.parameter, piece.first + i) + 1));
      }
    }
    model.shards_changed();
    CHECK(plan::verify(model.plan()).ok());
    for (std::size_t step = 0; step < steps; ++step) {
      for (std::size_t s = rank / job.slices; s < samples; s += job.data) {
        Values x(batch * width);
        for (std::size_t i = 0; i < x.size(); ++i) x[i] = std::cos(static_cast<float>(i * (s + 2) + step));
        const Values shifted = model.forward(shift, x);
        Values dy = model.forward(net, shifted);
        for (std::size_t i = 0; i < dy.size(); ++i) dy[i] -= x[(i + 1) % x.size()];
        model.backward(shift, model.backward(net, shifted, dy));
      }
      model.update();
    }
    const Values up = model.whole(net.up), down = model.whole(net.down), common = model.whole(shift.shift);
    if (rank >= job.slices) return;
    for (std::size_t i = 0; i < up.size(); ++i) weights[0][at(net.up, i)] = up[i];
    for (std::size_t i = 0; i < down.size(); ++i) weights[1][at(net.down, i)] = down[i];
    if (rank == 0) weights[2] = common;
  });
  return weights;
}

TEST_CASE("perceptron_cut_over_tensor_is_that_of_one_rank") {
  for (const Job& job : {Job{1, 2}, Job{1, 3}, Job{2, 2}, Job{3, 4, Strategy::zero2}, Job{2, 2, Strategy::ddp}}) {
    const std::vector<Values> alone = train({}, job.data), cut = train(job, job.data);
    for (std::size_t m = 0; m < alone.size(); ++m) {
      for (std::size_t i = 0; i < alone[m].size(); ++i) CHECK(std::abs(cut[m][i] - alone[m][i]) < 1e-6f);
    }
  }
}

}  // namespace tensor_parallel_test
