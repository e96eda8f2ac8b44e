// Data that divides nothing: weights of samples, ranks whose data has ended or never began, short accumulations.
#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <mutex>
#include <set>

#include "tessera/base/error.hpp"
#include "tessera/optim/adamw.hpp"
#include "tessera/optim/sgd.hpp"
#include "toy_model.hpp"

namespace uneven_test {

using namespace tessera;

using toy::Values;

constexpr std::size_t rows = 4;  // of a micro-batch
constexpr std::size_t inputs = 5;
constexpr std::size_t outputs = 3;

Values values_of(std::size_t sample, std::size_t count, std::uint64_t salt) {
  Values values(count);
  Initial::uniform(-1.0f, 1.0f).fill(values, 78, "sample", sample * 64 + salt * 32);
  return values;
}

// Two layers and a squared error. Rows that a micro-batch has not get a gradient of zero.
template <typename T>
class Network {
 public:
  Network(World& world, const FullyShardOptions& options,
          std::unique_ptr<Optimizer> optimizer = Sgd{.learning_rate = 0.1f})
      : model(world, options, std::move(optimizer), first_, second_) {}

  // Samples [begin, end), at most `rows`: gradients are their sum. Returns the sum of their losses.
  double train(std::size_t begin, std::size_t end, bool overflow = false) {
    read(begin, end);
    const Values& y = model.forward(second_, model.forward(first_, x_));
    double loss = 0.0;
    model.stream().submit([&, count = (end - begin) * outputs, scale = model.loss_scale()] {
      std::fill(dy_.begin(), dy_.end(), 0.0f);
      for (std::size_t i = 0; i < count; ++i) {
        const float error = y[i] - target_[i];
        loss += double(error) * double(error);
        dy_[i] = 2.0f * error * *scale;
      }
      if (overflow) dy_[0] = std::numeric_limits<float>::infinity();
    });
    model.backward(first_, model.backward(second_, dy_));
    model.synchronize();
    return loss;
  }

 private:
  void read(std::size_t begin, std::size_t end) {
    for (std::size_t s = begin; s < end; ++s) {
      const Values x = values_of(s, inputs, 0);
      const Values target = values_of(s, outputs, 1);
      std::copy(x.begin(), x.end(), x_.begin() + std::ptrdiff_t((s - begin) * inputs));
      std::copy(target.begin(), target.end(), target_.begin() + std::ptrdiff_t((s - begin) * outputs));
    }
  }

  toy::Layer<T> first_{inputs, 9, rows};
  toy::Layer<T> second_{9, outputs, rows};
  Values x_ = Values(rows * inputs);
  Values target_ = Values(rows * outputs);
  Values dy_ = Values(rows * outputs);

 public:
  toy::Model model;
};

// Every step takes `global` samples, the last of an epoch what is left; `ranks_with_data` of the ranks share them.
struct Job {
  FullyShardOptions options = {};
  int ranks = 1;
  int ranks_with_data = 0;  // 0: all
  std::size_t samples = 1003;
  std::size_t global = 50;
  int epochs = 2;
  std::set<std::size_t> overflows = {};  // steps in which the first sample's gradient is infinite
};

struct Outcome {
  std::vector<double> losses;  // by epoch, the mean over samples
  std::vector<double> norms;   // by step
  std::vector<double> weights_of_steps;
  std::vector<float> loss_scales;
  std::vector<std::size_t> trained = {};  // by sample: how often
  toy::Weights weights = {};
};

struct Slice {
  std::size_t begin;
  std::size_t end;
};

Slice slice_of(const Job& job, int rank, Slice step) {
  const std::size_t sharing = std::size_t(job.ranks_with_data > 0 ? job.ranks_with_data : job.ranks);
  const std::size_t place = std::min(std::size_t(rank), sharing);
  const std::size_t count = step.end - step.begin;
  if (place == sharing) return {step.end, step.end};
  return {step.begin + count * place / sharing, step.begin + count * (place + 1) / sharing};
}

std::size_t micro_batches_of(const Job& job) {
  const std::size_t sharing = std::size_t(job.ranks_with_data > 0 ? job.ranks_with_data : job.ranks);
  const std::size_t most = (job.global + sharing - 1) / sharing;
  return (most + rows - 1) / rows;
}

// One rank's part of a step: its micro-batches, or none.
template <typename T>
double train_step(Network<T>& network, Slice mine, bool overflow, std::vector<std::size_t>& trained) {
  double loss = 0.0;
  for (std::size_t begin = mine.begin; begin < mine.end; begin += rows) {
    const std::size_t end = std::min(begin + rows, mine.end);
    loss += network.train(begin, end, overflow && begin == mine.begin);
    for (std::size_t sample = begin; sample < end; ++sample) ++trained[sample];
  }
  if (mine.begin == mine.end) {
    network.model.skip_step();
  } else {
    network.model.update({.weight = mine.end - mine.begin});
  }
  return loss;
}

template <typename T = float>
Outcome run(Job job) {
  Outcome outcome;
  outcome.trained.resize(job.samples, 0);
  std::mutex mutex;
  job.options.micro_batches = micro_batches_of(job);
  launch({.ranks = job.ranks, .timeout = std::chrono::seconds(20)}, [&](World& world) {
    Network<T> network(world, job.options, Sgd{.learning_rate = 0.1f, .momentum = 0.5f, .clip_norm = 0.8f});
    std::vector<std::size_t> trained(job.samples, 0);
    std::size_t step = 0;
    for (int epoch = 0; epoch < job.epochs; ++epoch) {
      double loss = 0.0;
      double count = 0.0;
      for (std::size_t begin = 0; begin < job.samples; begin += job.global, ++step) {
        const Slice all{begin, std::min(begin + job.global, job.samples)};
        const Slice mine = slice_of(job, world.rank(), all);
        loss += train_step(network, mine, world.rank() == 0 && job.overflows.contains(step), trained);
        count += double(mine.end - mine.begin);
        const StepReport report = network.model.last_step();
        const std::lock_guard lock(mutex);
        if (world.rank() != 0) continue;
        outcome.norms.push_back(report.gradient_norm);
        outcome.weights_of_steps.push_back(report.weight);
        outcome.loss_scales.push_back(report.loss_scale);
        CHECK_FALSE(report.finished);
      }
      const double mean = world.mean(loss, count, "loss of an epoch");
      if (world.rank() == 0) outcome.losses.push_back(mean);
    }
    toy::collect_weights(network.model, outcome.weights);
    const std::lock_guard lock(mutex);
    for (std::size_t s = 0; s < job.samples; ++s) outcome.trained[s] += trained[s];
  });
  return outcome;
}

bool same_bits(const Outcome& a, const Outcome& b) {
  using toy::bits;
  return bits(a.losses) == bits(b.losses) && bits(a.norms) == bits(b.norms) && a.loss_scales == b.loss_scales &&
         toy::same_bits(a.weights, b.weights);
}

void check_like_one_rank(const Outcome& outcome, const Outcome& one) {
  REQUIRE(outcome.losses.size() == one.losses.size());
  for (std::size_t epoch = 0; epoch < one.losses.size(); ++epoch) {
    CHECK(std::abs(outcome.losses[epoch] / one.losses[epoch] - 1.0) < 1e-6);
  }
  REQUIRE(outcome.norms.size() == one.norms.size());
  for (std::size_t step = 0; step < one.norms.size(); ++step) {
    CHECK(outcome.norms[step] == doctest::Approx(one.norms[step]).epsilon(1e-4));
  }
  CHECK(outcome.weights_of_steps == one.weights_of_steps);
  for (const std::size_t times : outcome.trained) CHECK(times == 2);  // epochs
}

// Checks that each strategy comes to the bits of ddp, and to the losses of one rank.
void check_strategies(Job job, const Outcome& one) {
  for (const auto mode : {AccumulationMode::reduced, AccumulationMode::local}) {
    job.options.accumulation = mode;
    job.options.strategy = Strategy::ddp;
    const Outcome reference = run(job);
    check_like_one_rank(reference, one);
    for (const Strategy strategy : all_strategies) {
      job.options.strategy = strategy;
      CAPTURE(to_string(strategy));
      CAPTURE(job.ranks);
      CHECK(same_bits(run(job), reference));
    }
  }
}

TEST_CASE("data_that_divides_nothing_trains_as_on_one_rank_with_every_strategy") {
  const Outcome one = run(Job{});
  CHECK(one.losses[1] < one.losses[0]);
  CHECK(one.weights_of_steps.back() == 3.0);  // of 1003 samples, fifty at a time
  for (const int ranks : {2, 3, 7}) check_strategies({.ranks = ranks}, one);
}

TEST_CASE("uneven_data_on_a_mesh_trains_as_on_one_rank_with_every_strategy") {
  Job job{.ranks = 6};
  job.options.replicas = 2;
  check_strategies(job, run(Job{}));
}

TEST_CASE("a_rank_without_any_sample_takes_part_and_changes_no_loss") {
  check_strategies({.ranks = 3, .ranks_with_data = 2}, run(Job{}));
}

TEST_CASE("test_modes_leave_the_bits_of_uneven_data_alone") {
  Job job{.ranks = 3, .samples = 203};
  const Outcome reference = run(job);
  for (const std::size_t prefetch : {0u, 2u}) {
    job.options.prefetch = prefetch;
    job.options.diagnostics = {.delay_seed = 5, .poison = true, .touch = true, .queue_compute = true};
    CHECK(same_bits(run(job), reference));
  }
}

TEST_CASE("weights_and_skipped_steps_go_with_a_dynamic_loss_scale_and_overflows") {
  Job job{.ranks = 3, .ranks_with_data = 2};
  job.overflows = {0, 1, 7};
  job.options.precision = fp16_mixed;
  job.options.accumulation = AccumulationMode::reduced;
  job.options.loss_scaling = kernels::LossScaling{.initial = 256.0f, .dynamic = true};
  const Outcome reference = run<fp16>(job);
  CHECK(reference.loss_scales[0] == 128.0f);
  CHECK(reference.loss_scales[1] == 64.0f);
  CHECK(reference.loss_scales[6] == 64.0f);
  CHECK(reference.loss_scales.back() == 32.0f);
  CHECK_FALSE(std::isfinite(reference.norms[7]));
  const Outcome expected = run(Job{.overflows = job.overflows});  // in fp32, on one rank; skips the same steps
  REQUIRE(reference.norms.size() == expected.norms.size());
  for (std::size_t step = 0; step < expected.norms.size(); ++step) {
    if (std::isfinite(expected.norms[step])) {
      CHECK(reference.norms[step] == doctest::Approx(expected.norms[step]).epsilon(0.02));
    }
  }
  CHECK(reference.losses[1] < reference.losses[0]);
  for (const Strategy strategy : all_strategies) {
    job.options.strategy = strategy;
    CHECK(same_bits(run<fp16>(job), reference));
  }
}

// Everything that a step may change of this rank.
std::vector<std::uint32_t> state_of(FullyShard& model) {
  std::vector<std::uint32_t> bits;
  for (std::size_t unit = 0; unit < model.unit_count(); ++unit) {
    for (const char* state : {"master", "m", "v"}) {
      for (const float value : toy::share(model, model.unit(unit), state))
        bits.push_back(std::bit_cast<std::uint32_t>(value));
    }
  }
  const kernels::StepScalars scalars = model.step_scalars();
  for (const auto count : {scalars.step, scalars.skipped_steps}) bits.push_back(std::uint32_t(count));
  bits.push_back(std::bit_cast<std::uint32_t>(scalars.loss_scale));
  bits.push_back(std::uint32_t(scalars.good_steps));
  bits.push_back(std::bit_cast<std::uint32_t>(float(scalars.decay_power[0])));
  return bits;
}

void on_ranks(int ranks, const std::function<void(World&)>& body) {
  launch({.ranks = ranks, .timeout = std::chrono::seconds(20)}, body);
}

TEST_CASE("a_step_that_every_rank_skips_changes_nothing_and_says_that_data_has_ended") {
  for (const Strategy strategy : {Strategy::ddp, Strategy::zero1, Strategy::fsdp}) {
    on_ranks(3, [&](World& world) {
      Network<fp16> network(world,
                            {.strategy = strategy,
                             .precision = fp16_mixed,
                             .loss_scaling = kernels::LossScaling{.initial = 256.0f, .dynamic = true}},
                            AdamW{.learning_rate = 0.01f, .weight_decay = 0.1f});
      FullyShard& model = network.model;
      CHECK_FALSE(model.finished());
      std::size_t steps = 0;  // rank r has r batches
      for (; !model.finished(); ++steps) {
        if (steps < std::size_t(world.rank())) {
          network.train(0, rows);
          model.update({.weight = 1.0});
        } else {
          model.skip_step();
        }
      }
      CHECK(steps == 3);
      CHECK(model.last_step().updates == 2);
      CHECK(model.last_step().weight == 0.0);
      CHECK_FALSE(model.last_step().skipped);
      const std::vector<std::uint32_t> before = state_of(model);
      model.skip_step(0.5f);
      CHECK(model.finished());
      CHECK(state_of(model) == before);
      network.train(0, rows);
      model.update();
      CHECK_FALSE(model.finished());
      CHECK(state_of(model) != before);
    });
  }
}

TEST_CASE("a_short_accumulation_is_divided_by_what_it_was") {
  // Two of five micro-batches, and the two that a model of two has.
  for (const auto mode : {AccumulationMode::reduced, AccumulationMode::local}) {
    std::vector<std::vector<double>> norms(2);
    on_ranks(3, [&](World& world) {
      for (const std::size_t micro_batches : {5u, 2u}) {
        Network<float> network(world, {.micro_batches = micro_batches, .accumulation = mode});
        for (int step = 0; step < 3; ++step) {
          for (std::size_t micro = 0; micro < 2; ++micro) {
            const std::size_t first = std::size_t(world.rank()) * 64 + micro * rows;
            network.train(first, first + rows);
          }
          network.model.update();
          const StepReport report = network.model.last_step();
          CHECK(report.weight == 6.0);
          double squares = 0.0;
          for (const GradientNorm& entry : network.model.gradient_norms()) squares += entry.norm * entry.norm;
          CHECK(std::sqrt(squares) == doctest::Approx(report.gradient_norm));
          if (world.rank() == 0) norms[micro_batches == 5 ? 0 : 1].push_back(report.gradient_norm);
        }
      }
    });
    for (std::size_t step = 0; step < 3; ++step) {
      CHECK(norms[0][step] == doctest::Approx(norms[1][step]).epsilon(1e-6));
    }
  }
}

TEST_CASE("skipped_steps_and_short_accumulations_are_traced_as_others_are") {
  on_ranks(2, [&](World& world) {
    Network<float> network(world, {.micro_batches = 2});
    const Trace trace = network.model.trace({.first = 1, .last = 2});
    for (int step = 0; step < 2; ++step) {
      CHECK_FALSE(trace.complete());
      if (world.rank() == 0 && step == 0) {
        network.train(0, rows);
        network.model.update({.weight = 4.0});
      } else {
        network.model.skip_step();
      }
    }
    network.model.synchronize();
    CHECK(trace.complete());
  });
}

TEST_CASE("a_factor_on_gradients_and_weights_alike_cancels") {
  std::vector<double> norms;
  on_ranks(2, [&](World& world) {
    for (const double factor : {1.0, 0.25}) {
      Network<float> network(world, {});
      network.train(0, 3);
      network.model.update({.learning_rate = 0.2f, .weight = 3.0 * factor});
      if (world.rank() == 0) norms.push_back(network.model.last_step().gradient_norm * factor);
    }
  });
  CHECK(norms[0] == norms[1]);
}

TEST_CASE("an_exception_in_a_ranks_last_batch_reaches_ranks_that_have_none_left") {
  for (int thrower = 0; thrower < 2; ++thrower) {
    std::mutex mutex;
    int told = 0;
    const auto body = [&](World& world) {
      Network<float> network(world, {.micro_batches = 2});
      try {
        for (int step = 0; step < 4; ++step) {
          if (step == 3 && world.rank() != thrower) {
            network.model.skip_step();
            continue;
          }
          network.train(0, rows);
          if (step == 3) {
            network.model.within(network.model.unit(0), plan::WindowKind::forward,
                                 [](Window&) { throw std::runtime_error("the last batch is broken"); });
          }
          network.model.update({.weight = 1.0});
        }
        network.model.synchronize();
      } catch (const std::exception& error) {
        const std::lock_guard lock(mutex);
        if (std::string(error.what()).find("the last batch is broken") != std::string::npos) ++told;
        throw;
      }
    };
    CHECK_THROWS(on_ranks(3, body));
    CHECK(told == 3);
  }
}

TEST_CASE("weights_that_are_none_are_refused_and_the_step_goes_on") {
  on_ranks(1, [&](World& world) {
    Network<float> network(world, {});
    FullyShard& model = network.model;
    CHECK_THROWS_WITH_AS(model.update({.weight = 1.0}), doctest::Contains("or skip_step() where data has ended"),
                         UsageError);
    network.train(0, rows);
    const double infinity = std::numeric_limits<double>::infinity();
    for (const double weight : {-1.0, std::numeric_limits<double>::quiet_NaN(), infinity}) {
      CHECK_THROWS_WITH_AS(model.update({.weight = weight}), doctest::Contains("a weight is finite and at least 0"),
                           UsageError);
    }
    model.update({.weight = 0.0});  // samples that count nothing
    CHECK(model.last_step().updates == 0);
    CHECK(model.last_step().skipped_updates == 0);
    CHECK(model.last_step().weight == 0.0);
    CHECK_FALSE(model.finished());
  });
}

TEST_CASE("a_step_that_has_begun_is_not_skipped") {
  on_ranks(1, [&](World& world) {
    Network<float> network(world, {.micro_batches = 2});
    network.train(0, rows);
    CHECK_THROWS_WITH_AS(network.model.skip_step(), doctest::Contains("skip_step() came inside a step"), UsageError);
    network.model.update();
    CHECK(network.model.last_step().weight == 1.0);
    CHECK_THROWS_WITH_AS(network.model.skip_step(-1.0f), doctest::Contains("skip_step(-1): a learning rate"),
                         UsageError);
  });
}

// Rank 1 ends its step in its own way.
void step_of_three(const std::function<void(FullyShard&)>& end_of_rank_1) {
  on_ranks(3, [&](World& world) {
    Network<float> network(world, {});
    network.train(0, rows);
    world.rank() == 1 ? end_of_rank_1(network.model) : network.model.update();
    network.model.synchronize();
  });
}

TEST_CASE("ranks_of_which_some_give_weights_are_told") {
  CHECK_THROWS_WITH(step_of_three([](FullyShard& model) { model.update({.weight = 4.0}); }),
                    doctest::Contains("some ranks gave a weight to update() and others did not"));
}

TEST_CASE("gradients_that_are_discarded_change_nothing_and_can_be_looked_at") {
  for (const Strategy strategy : {Strategy::ddp, Strategy::zero1, Strategy::fsdp}) {
    for (const auto mode : {AccumulationMode::reduced, AccumulationMode::local}) {
      on_ranks(3, [&](World& world) {
        Network<fp16> network(world,
                              {.strategy = strategy,
                               .precision = fp16_mixed,
                               .micro_batches = 2,
                               .accumulation = mode,
                               .loss_scaling = kernels::LossScaling{.initial = 256.0f, .dynamic = true}},
                              AdamW{.learning_rate = 0.01f, .weight_decay = 0.1f});
        FullyShard& model = network.model;
        const auto pass = [&](std::size_t sample, bool overflow = false) {
          network.train(sample, sample + rows, overflow);
          network.train(sample + 1, sample + 2);
        };
        const auto norms = [&] {
          std::vector<double> result;
          for (const GradientNorm& entry : model.gradient_norms()) result.push_back(entry.norm);
          return result;
        };
        pass(0);
        model.update();
        const std::vector<std::uint32_t> before = state_of(model);
        pass(7, true);
        model.discard_gradients();
        CHECK(state_of(model) == before);
        CHECK(model.last_step().weight == 0.0);
        CHECK_FALSE(model.last_step().skipped);
        CHECK_FALSE(model.finished());
        pass(3);
        model.discard_gradients();
        const std::vector<double> looked_at = norms();
        pass(3);
        model.update();
        CHECK(norms() == looked_at);
        CHECK(state_of(model) != before);
        CHECK(model.last_step().updates == 2);
        const std::vector<std::uint32_t> after = state_of(model);
        if (world.rank() == 0) network.train(0, rows);  // one has computed less, the others nothing
        model.discard_gradients();
        CHECK(state_of(model) == after);
      });
    }
  }
}

TEST_CASE("ranks_of_which_some_discard_their_gradients_are_told") {
  CHECK_THROWS_WITH(step_of_three([](FullyShard& model) { model.discard_gradients(); }),
                    doctest::Contains("discard_gradients()"));
  on_ranks(1, [](World& world) {
    Network<float> network(world, {}, Sgd{.learning_rate = 0.25f});
    Window window = network.model.open(network.model.unit(0), plan::WindowKind::forward);
    CHECK_THROWS_WITH_AS(network.model.discard_gradients(),
                         doctest::Contains("discard_gradients() came inside a pass: the forward window of unit first"),
                         UsageError);
    window.close();
  });
}

TEST_CASE("outer_steps_refuse_weights_and_skipped_steps") {
  on_ranks(2, [](World& world) {
    Network<float> network(world, {.replicas = 2, .outer = {.every = 2}});
    CHECK_THROWS_WITH_AS(network.model.skip_step(), doctest::Contains("skip_step() does not go with outer steps"),
                         UsageError);
    network.train(0, rows);
    CHECK_THROWS_WITH_AS(network.model.update({.weight = 1.0}), doctest::Contains("a weight in update() does not go"),
                         UsageError);
    CHECK_THROWS_WITH_AS(network.model.discard_gradients(),
                         doctest::Contains("discard_gradients() does not go with outer"), UsageError);
    network.model.update();
  });
}

}  // namespace uneven_test
