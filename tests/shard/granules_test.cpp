// The same granules on any number of ranks, with any mesh and strategy: the same bits.
#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "../extent.hpp"
#include "tessera/base/error.hpp"
#include "tessera/optim/adamw.hpp"
#include "tessera/optim/sgd.hpp"
#include "toy_model.hpp"
#include "whole_optimizers.hpp"

namespace granules_test {

using namespace tessera;
using toy::Result;
using toy::Values;

constexpr std::size_t rows = 3;  // of a granule
constexpr std::size_t granules = 12;

// A toy::Run whose samples belong to granules, not to ranks.
struct Run {
  FullyShardOptions options = {.granules = granules};
  int ranks = 1;
  int steps = 4;
  std::vector<std::size_t> widths = {5, 13, 31, 7, 3};
  float clip = 0.5f;
  std::set<int> overflows = {};            // steps in which a granule's gradient is infinite
  std::vector<Precision> precisions = {};  // of the units, in turn; none: the model's
  std::set<std::size_t> frozen = {};
  std::vector<std::size_t> of_steps = {};  // granules that have samples, by step in turn; none: all have
  bool weighs = false;                     // granules have weights
  std::function<std::unique_ptr<Optimizer>(float clip)> optimizer = {};  // none: AdamW
};

std::string describe(const Run& run) {
  const FullyShardOptions& o = run.options;
  return to_string(o.strategy, o.sharding) + " ranks " + std::to_string(run.ranks) + " replicas " +
         std::to_string(o.replicas) + " granules " + std::to_string(o.granules);
}

template <typename T>
class Net {
 public:
  Net(World& world, const Run& run) : run_(run), model(world, run.options) {
    layers_ = toy::make_layers<toy::Layer<T>>(run.widths, rows);
    toy::Run units{.precisions = run.precisions, .frozen = run.frozen};
    toy::add_layers(model, layers_, units);
  }

  void train(int step, std::size_t granule) {
    const std::size_t last = run_.widths.size() - 1;
    input_ = sample(step, granule, run_.widths.front(), 0);
    target_ = sample(step, granule, run_.widths[last], 1);
    dy_.resize(target_.size());
    const Values* const x = &toy::forward(model, layers_, input_);
    model.stream().submit([&, x, scale = model.loss_scale()] {
      for (std::size_t i = 0; i < target_.size(); ++i) dy_[i] = 2.0f * ((*x)[i] - target_[i]) * *scale;
      if (run_.overflows.contains(step) && granule == 7) dy_[0] = std::numeric_limits<float>::infinity();
    });
    toy::backward(model, layers_, dy_);
    model.synchronize();
  }

 private:
  static Values sample(int step, std::size_t granule, std::size_t width, int salt) {
    return toy::sample(rows * width, step, granule / 4, int(granule % 4), salt);
  }

  const Run& run_;
  toy::Layers<toy::Layer<T>> layers_;
  Values input_, target_, dy_;

 public:
  FullyShard model;
};

// A weight that adds up to other bits in another order.
double weight_of(int step, std::size_t granule) { return 0.1 + 0.3 * double((granule * 7 + std::size_t(step)) % 5); }

// This rank's part of a step, of which the first granules alone have samples.
template <typename T>
void train_step(Net<T>& net, const Run& run, int step) {
  const Granules mine = net.model.granules();
  const std::size_t with_samples =
      run.of_steps.empty() ? mine.total : run.of_steps[std::size_t(step) % run.of_steps.size()];
  std::vector<double> weights;
  for (std::size_t round = 0; round < mine.mine() && mine.number(round) < with_samples; ++round) {
    net.train(step, mine.number(round));
    weights.push_back(weight_of(step, mine.number(round)));
  }
  if (weights.empty()) return net.model.skip_step();
  if (!run.weighs) return net.model.update();
  net.model.update({.granule_weights = weights});
}

template <typename T>
Result train(const Run& run) {
  Result result;
  launch({.ranks = run.ranks, .timeout = std::chrono::seconds(20)}, [&](World& world) {
    Net<T> net(world, run);
    toy::Run optimizer{.clip = run.clip};
    optimizer.optimizer = run.optimizer;
    net.model.finalize(toy::optimizer_of(optimizer));
    for (int step = 0; step < run.steps; ++step) {
      train_step(net, run, step);
      const StepReport report = net.model.last_step();
      if (world.rank() != 0) continue;
      result.norms.push_back(report.weight);
      result.norms.push_back(report.gradient_norm);
      result.loss_scales.push_back(report.loss_scale);
      result.skipped.push_back(report.skipped_updates);
    }
    const std::vector<GradientNorm> norms = net.model.gradient_norms();
    if (world.rank() == 0) {
      for (const GradientNorm& entry : norms) result.parameter_norms.push_back(entry.norm);
    }
    toy::collect_weights(net.model, result.weights);
  });
  return result;
}

std::vector<toy::Mesh> meshes() {
  if (tests::sanitized) return {{5, 1}, {4, 2}};
  if (tests::reduced()) return {{2, 1}, {5, 1}, {8, 1}, {4, 2}, {12, 1}};
  return {{1, 1}, {2, 1}, {3, 1}, {4, 1}, {5, 1}, {6, 1}, {8, 1}, {12, 1}, {4, 2}, {6, 2}, {6, 3}, {4, 4}};
}

// Every mesh and strategy against one rank.
template <typename T>
void check_any_ranks(const std::function<void(Run&)>& vary) {
  Run alone;
  vary(alone);
  const Result reference = train<T>(alone);
  CHECK(std::isfinite(reference.norms.back()));
  for (const toy::Mesh& mesh : meshes()) {
    for (const Strategy strategy : mesh.strategies()) {
      Run run = alone;
      run.ranks = mesh.ranks;
      run.options.replicas = mesh.replicas;
      run.options.strategy = strategy;
      CAPTURE(describe(run));
      CHECK(toy::same_bits(train<T>(run), reference));
    }
  }
}

TEST_CASE("any_number_of_ranks_has_the_same_bits") {
  check_any_ranks<float>([](Run&) {});
}

TEST_CASE("any_number_of_ranks_has_the_same_bits_with_bf16_parameters_gradients_and_wire") {
  check_any_ranks<bf16>([](Run& run) { run.options.precision = bf16_mixed; });
}

TEST_CASE("any_number_of_ranks_has_the_same_bits_with_bf16_masters") {
  check_any_ranks<bf16>([](Run& run) {
    run.options.precision = bf16_mixed;
    run.options.precision.masters = DType::bf16;
  });
}

TEST_CASE("any_number_of_ranks_has_the_same_bits_with_fp16_and_a_step_that_is_skipped") {
  const auto overflows = [](std::set<int> steps) {
    return [steps = std::move(steps)](Run& run) {
      run.options.precision = fp16_mixed;
      run.options.loss_scaling = kernels::LossScaling{.initial = 64.0f, .dynamic = true, .growth_interval = 2};
      run.overflows = steps;
    };
  };
  Run sound, skipped;
  overflows({})(sound);
  overflows({0, 2})(skipped);
  CHECK(train<fp16>(sound).skipped.back() == 0);
  CHECK(train<fp16>(skipped).skipped.back() == 2);
  check_any_ranks<fp16>(overflows({0, 2}));
}

TEST_CASE("any_number_of_ranks_has_the_same_bits_when_gradients_travel_in_another_type") {
  check_any_ranks<bf16>([](Run& run) {
    run.precisions = {{DType::bf16, DType::bf16, DType::fp32}, bf16_mixed, {DType::bf16, DType::bf16, DType::fp16}};
  });
}

TEST_CASE("any_number_of_ranks_has_the_same_bits_with_moments_of_8_bits") {
  check_any_ranks<bf16>([](Run& run) {
    run.optimizer = toy::in_eight_bits;
    run.options.precision = bf16_mixed;
    run.widths = {3, 86, 3, 257, 1};
  });
}

// One rank has all elements in order: there an optimizer that sees tensors whole is a plain loop.
TEST_CASE("any_number_of_ranks_has_the_same_bits_with_tensors_seen_whole") {
  check_any_ranks<float>(
      [](Run& run) { run.optimizer = [](float clip) { return std::make_unique<whole_optimizers::Running>(clip); }; });
}

TEST_CASE("any_number_of_ranks_has_the_same_bits_with_frozen_parameters") {
  check_any_ranks<float>([](Run& run) { run.frozen = {0, 1}; });
}

// In some rounds some ranks bring nothing, in some steps some never do.
TEST_CASE("any_number_of_ranks_has_the_same_bits_where_granules_have_no_samples_and_others_have_weights") {
  check_any_ranks<float>([](Run& run) {
    run.of_steps = {12, 7, 1, 11};
    run.weighs = true;
  });
}

TEST_CASE("as_many_granules_as_one_and_a_prime_number_of_them") {
  for (const std::size_t count : {std::size_t{1}, std::size_t{7}}) {
    Run alone{.options = {.granules = count}};
    const Result reference = train<float>(alone);
    for (const int ranks : {1, 3, 7}) {
      if (std::size_t(ranks) > count) continue;
      for (const Strategy strategy : flat_strategies) {
        Run run = alone;
        run.ranks = ranks;
        run.options.strategy = strategy;
        CAPTURE(describe(run));
        CHECK(toy::same_bits(train<float>(run), reference));
      }
    }
  }
}

TEST_CASE("prefetch_buckets_and_overlap_leave_the_bits_of_granules_alone") {
  const Result reference = train<float>({});
  for (const std::size_t prefetch : {std::size_t{0}, std::size_t{2}}) {
    for (const bool reshard : {true, false}) {
      Run run{.options = {.granules = granules,
                          .prefetch = prefetch,
                          .reshard_after_forward = reshard,
                          .overlap_reduction = prefetch == 2,
                          .bucket_cap = reshard ? Bytes(1u << 20) : Bytes(0),
                          .diagnostics = {.delay_seed = prefetch, .poison = true, .touch = true}},
              .ranks = 5};
      CAPTURE(describe(run));
      CHECK(toy::same_bits(train<float>(run), reference));
    }
  }
}

// The arithmetic that granules take the order out of is there: without them another number of ranks has other bits.
TEST_CASE("without_granules_the_number_of_ranks_shows") {
  const auto weights = [](int ranks) {
    toy::Run run{.options = {.micro_batches = std::size_t(4 / ranks)}, .ranks = ranks};
    return toy::train(run);
  };
  CHECK_FALSE(toy::same_bits(weights(1), weights(4)));
}

double largest_difference(const Result& a, const Result& b) {
  double most = 0.0;
  for (const auto& [name, values] : a.weights) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      most = std::max(most, std::abs(double(values[i]) - double(b.weights.at(name)[i])));
    }
  }
  return most;
}

// The same steps, whose sums are formed in another order.
TEST_CASE("granules_train_what_mode_local_does_to_rounding") {
  Run run{.ranks = 4};
  Run local = run;
  local.options = {.micro_batches = granules / 4, .accumulation = AccumulationMode::local};
  const Result with = train<float>(run);
  Result without;
  launch({.ranks = 4, .timeout = std::chrono::seconds(20)}, [&](World& world) {
    Net<float> net(world, local);
    net.model.finalize(AdamW{.learning_rate = 0.01f, .weight_decay = 0.1f, .clip_norm = local.clip});
    for (int step = 0; step < local.steps; ++step) {
      const Granules mine{granules, 4, std::size_t(world.rank())};
      for (std::size_t round = 0; round < mine.mine(); ++round) net.train(step, mine.number(round));
      net.model.update();
    }
    toy::collect_weights(net.model, without.weights);
  });
  const double difference = largest_difference(with, without);
  CHECK(difference > 0.0);
  CHECK(difference < 2e-5);
}

// ---- zeros ----

// Its gradient is −0 everywhere.
class NegativeZero : public Module {
 public:
  void visit(ModuleVisitor& visitor) override { visitor("weight", weight); }
  void forward(Window&) {}
  void backward(Window& window) {
    for (float& value : window.gradient<float>(weight)) value = -0.0f;
  }
  Parameter weight{{5}, Initial::constant(1.0f)};
};

// A granule that is missing adds nothing, where +0 would turn −0 around.
TEST_CASE("missing_granules_leave_the_sign_of_a_zero") {
  for (const int ranks : {1, 2, 3, 5}) {
    for (const Strategy strategy : {Strategy::ddp, Strategy::fsdp}) {
      CAPTURE(ranks);
      launch({.ranks = ranks, .timeout = std::chrono::seconds(20)}, [&](World& world) {
        NegativeZero layer;
        toy::Model model(world, {.strategy = strategy, .granules = 6}, Sgd{.learning_rate = 0.5f}, layer);
        for (std::size_t round = 0; round < model.granules().mine(); ++round) {
          model.forward(layer);
          model.backward(layer);
        }
        model.discard_gradients();
        for (const ParameterPiece& piece : model.pieces(model.unit(0), "gradient")) {
          for (const float value : piece.values) CHECK(std::signbit(value));
        }
      });
    }
  }
}

// ---- what is refused ----

TEST_CASE("a_rank_that_has_no_granule_left_is_told") {
  const std::string told = toy::failure_of(3, [](World& world) {
    Run run{.options = {.granules = 4}};
    Net<float> net(world, run);
    net.model.finalize(Sgd{});
    for (std::size_t round = 0; round < 2; ++round) net.train(0, round);
  });
  CHECK(toy::contains(told, "this rank has computed its 1 of the 4 granules of this step"));
}

TEST_CASE("weights_of_granules_are_one_for_each_that_was_computed") {
  const auto told = [](std::size_t of, const std::function<void(FullyShard&)>& update) {
    return toy::failure_of(1, [&](World& world) {
      Run run{.options = {.micro_batches = of == 0 ? std::size_t{2} : 1, .granules = of}};
      Net<float> net(world, run);
      net.model.finalize(Sgd{});
      for (std::size_t round = 0; round < 2; ++round) net.train(0, round);
      update(net.model);
    });
  };
  const std::vector<double> three = {1.0, 2.0, 3.0}, bad = {1.0, -1.0};
  CHECK(toy::contains(told(2, [&](FullyShard& model) { model.update({.granule_weights = three}); }),
                      "3 granule_weights, and this rank has computed 2"));
  CHECK(toy::contains(told(2, [&](FullyShard& model) { model.update({.weight = 1.0}); }), "give granule_weights"));
  CHECK(toy::contains(told(2, [&](FullyShard& model) { model.update({.granule_weights = bad}); }), "weight -1"));
  CHECK(toy::contains(told(0, [&](FullyShard& model) { model.update({.granule_weights = three}); }), "give weight"));
}

}  // namespace granules_test
