// A perceptron cut over the axis `tensor`, its first layer by rows and its second by columns, is that of one rank: its
// parameters say that they are slices, and two sums in its windows, which the plan has like every other collective, are
// all that it takes beside.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>
#include <vector>

#include "../checkpoint/temporary_folder.hpp"
#include "../error_text.hpp"
#include "tessera/base/error.hpp"
#include "tessera/checkpoint/checkpointer.hpp"
#include "tessera/checkpoint/weights.hpp"
#include "tessera/comm/run.hpp"
#include "tessera/optim/adamw.hpp"
#include "tessera/optim/adamw8bit.hpp"
#include "tessera/plan/verify.hpp"
#include "tessera/shard/fully_shard.hpp"

using namespace tessera;

namespace tensor_parallel_test {

constexpr std::size_t width = 6, hidden = 12, batch = 5, steps = 6;
using Values = std::vector<float>;

// y = down tanh(up x) + bias, of which this rank has some of the hidden values.
struct Perceptron final : Module {
  explicit Perceptron(std::size_t slices)
      : own((hidden + slices - 1) / slices),
        up({own, width}, Initial::normal(0.0f, 0.4f), {.slice = plan::Slice{0, hidden}}),
        down({width, own}, Initial::normal(0.0f, 0.4f), {.slice = plan::Slice{1, hidden}}) {}
  void visit(ModuleVisitor& visitor) override {
    visitor("up", up), visitor("bias", bias), visitor("down", down), visitor("y", y), visitor("dx", dx);
  }
  Values forward(Window& window, const Values& x) {
    const std::span<const float> u = window.parameter(up), d = window.parameter(down), b = window.parameter(bias);
    for (std::size_t i = 0; i < batch * own; ++i) {
      const float* const row = &x[i / own * width];
      h[i] = std::tanh(std::inner_product(row, row + width, &u[i % own * width], 0.0f));
    }
    const std::span<float> part = window.contribution<float>(y);
    for (std::size_t i = 0; i < batch * width; ++i) {
      part[i] = 0;
      for (std::size_t k = 0; k < own; ++k) part[i] += d[i % width * own + k] * h[i / width * own + k];
    }
    Values sum = values_of(window.collect<float>(y));
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += b[i % width];
    return sum;
  }
  Values backward(Window& window, const Values& x, const Values& dy) {
    const std::span<const float> u = window.parameter(up), d = window.parameter(down);
    const std::span<float> du = window.gradient(up), dd = window.gradient(down), db = window.gradient(bias);
    const std::span<float> part = window.contribution<float>(dx);
    for (const std::span<float> each : {du, dd, db, part}) std::ranges::fill(each, 0.0f);
    for (std::size_t b = 0; b < batch; ++b) {
      for (std::size_t o = 0; o < width; ++o) db[o] += dy[b * width + o];
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
    return {.kind = CollectiveKind::all_reduce,
            .type = DType::fp32,
            .forward = forward,
            .backward = !forward,
            .axes = Axis::tensor};
  }
  std::size_t own;
  Parameter up, down, bias{{width}, Initial::normal(0.0f, 0.1f), {.slice = plan::Slice{}}};
  Collective y{batch * width, sum(true)}, dx{batch * width, sum(false)};
  Values h = Values(batch * own);
};

// Every rank has all of it, in common.
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
  Precision precision = fp32_precision;
};

struct Net {
  Net(World& world, const Job& given, std::size_t samples)
      : job(given),
        net(job.slices),
        model(world, {.strategy = job.strategy,
                      .mesh = plan::MeshShape{{Axis::shard, job.data}, {Axis::tensor, job.slices}},
                      .precision = job.precision,
                      .micro_batches = samples / job.data,
                      .accumulation = AccumulationMode::reduced,
                      .seed = 5,
                      .checkpointing = Checkpointing::blocking}) {
    model.add(shift, "shift");
    model.add(net, "net");
    model.finalize(AdamW{.learning_rate = 0.01f, .clip_norm = 0.1f});
    CHECK(plan::verify(model.plan()).ok());
  }
  // One rank takes the samples of all as micro-batches.
  void train(std::size_t step, std::size_t samples) {
    const std::size_t rank = static_cast<std::size_t>(model.world().rank());
    for (std::size_t s = rank / job.slices; s < samples; s += job.data) {
      Values x(batch * width);
      for (std::size_t i = 0; i < x.size(); ++i) x[i] = std::cos(static_cast<float>(i * (s + 2) + step));
      const Values shifted = model.forward(shift, x);
      Values dy = model.forward(net, shifted);
      for (std::size_t i = 0; i < dy.size(); ++i) dy[i] -= x[(i + 1) % x.size()];
      model.backward(shift, model.backward(net, shifted, dy));
    }
    model.update();
    norms.push_back(model.last_step().gradient_norm);
    for (const GradientNorm& each : model.gradient_norms()) norms.push_back(each.norm);
  }
  std::vector<Values> weights() {
    std::vector<Values> result;
    for (const Parameter* each : {&net.up, &net.down, &net.bias, &shift.shift}) {
      for (const char* state : {"master", "m", "v"}) result.push_back(model.whole(*each, state));
    }
    return result;
  }
  Job job;
  Shift shift;
  Perceptron net;
  FullyShard model;
  std::vector<double> norms;
};

struct Outcome {
  std::vector<Values> before, after;
  std::vector<double> norms;
};

// Rank 0's; every rank sees the same.
Outcome train(const Job& job, std::size_t samples) {
  Outcome outcome;
  launch({.ranks = static_cast<int>(job.data * job.slices)}, [&](World& world) {
    Net net(world, job, samples);
    const std::vector<Values> before = net.weights();
    for (std::size_t step = 0; step < steps; ++step) net.train(step, samples);
    const std::vector<Values> after = net.weights();
    if (world.rank() == 0) outcome = {before, after, net.norms};
    for (const Values& each : after)
      world.require_equal(
          std::hash<std::string_view>()({reinterpret_cast<const char*>(each.data()), each.size() * sizeof(float)}),
          "weights");
  });
  return outcome;
}

TEST_CASE("perceptron_cut_over_tensor_is_that_of_one_rank") {
  for (const Job& job : {Job{1, 2}, Job{1, 5}, Job{2, 2}, Job{3, 4, Strategy::zero2}}) {
    const Outcome alone = train({}, job.data), cut = train(job, job.data);
    CHECK(alone.before == cut.before);  // bit by bit
    for (std::size_t m = 0; m < alone.after.size(); ++m) {
      for (std::size_t i = 0; i < alone.after[m].size(); ++i) {
        CHECK(std::abs(cut.after[m][i] - alone.after[m][i]) < 1e-5f);
      }
    }
    for (std::size_t i = 0; i < alone.norms.size(); ++i) {
      CHECK(cut.norms[i] == doctest::Approx(alone.norms[i]).epsilon(2e-5));
    }
  }
}

TEST_CASE("every_strategy_inside_a_group_of_slices_has_the_same_bits") {
  const Outcome ddp = train({2, 3, Strategy::ddp}, 4);
  for (const Strategy strategy : {Strategy::zero1, Strategy::zero2, Strategy::fsdp}) {
    const Outcome other = train({2, 3, strategy}, 4);
    CHECK(ddp.after == other.after);
    CHECK(ddp.norms == other.norms);
  }
}

// In every type of masters; slices that reach beyond the tensor have no part of it.
TEST_CASE("checkpoints_and_weights_of_slices_are_of_one_tensor") {
  Precision narrow = bf16_mixed;
  narrow.masters = DType::bf16;
  for (const Precision& precision : {fp32_precision, narrow}) {
    const TemporaryFolder folder;
    std::vector<Values> saved;
    const auto on = [&](const Job& job, const auto& body) {
      launch({.ranks = static_cast<int>(job.data * job.slices)}, [&](World& world) {
        Net net(world, job, 4);
        Checkpointer checkpoints(net.model, {.directory = folder.path()});
        body(world, net, checkpoints);
      });
    };
    on({2, 2, Strategy::fsdp, precision}, [&](World& world, Net& net, Checkpointer& checkpoints) {
      if (precision == fp32_precision) {
        for (std::size_t step = 0; step < 2; ++step) net.train(step, 4);
      }
      checkpoints.save({.step = 2});
      dump_weights(net.model, folder / "weights");
      const std::vector<Values> now = net.weights();
      if (world.rank() == 0) saved = now;
    });
    for (const Job& job : {Job{1, 1}, Job{4, 1}, Job{1, 4}, Job{1, 5}}) {
      on({job.data, job.slices, Strategy::fsdp, precision}, [&](World&, Net& net, Checkpointer& checkpoints) {
        checkpoints.load(folder / checkpoint_name(2));
        CHECK(net.weights() == saved);
      });
      on({job.data, job.slices, Strategy::fsdp, precision}, [&](World&, Net& net, Checkpointer&) {
        load_weights(net.model, folder / "weights");
        const std::vector<Values> loaded = net.weights();
        for (std::size_t i = 0; i < saved.size(); i += 3) CHECK(loaded[i] == saved[i]);
      });
    }
  }
}

TEST_CASE("slices_that_do_not_fit_are_refused") {
  const auto said = [](std::size_t slices, std::size_t made_for, const auto& optimizer) {
    return tests::error_text<UsageError>([&] {
      launch({.ranks = static_cast<int>(slices)}, [&](World& world) {
        Perceptron net(made_for);
        FullyShard model(world, {.mesh = plan::MeshShape{{Axis::tensor, slices}}});
        model.add(net, "net");
        model.finalize(optimizer);
      });
    });
  };
  CHECK(said(2, 3, AdamW{}).find("net.up is a slice: it has 4 of 12 rows, and each of 2 ranks has 6") !=
        std::string::npos);
  CHECK(said(2, 2, AdamW8bit{}).find("which slices would share") != std::string::npos);
  CHECK(said(2, 2, AdamW{}).empty());
}

}  // namespace tensor_parallel_test
