// How much of the communication that computation could hide is hidden: fsdp with prefetch 1, one rank on one core, and
// a modelled communicator, whose collectives take their time and no core.
//
//   hideable = computation + communication - the step that the plan allows at best
//   hidden   = computation + communication - the step that was measured
//
// usage: overlap [--units N] [--width N] [--batch N] [--share PERCENT] [--steps N]    prints figures, one per line
#include <sched.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "measure/figure.hpp"
#include "measure/program.hpp"
#include "measure/timing.hpp"
#include "tessera/base/error.hpp"
#include "tessera/comm/simulate.hpp"
#include "tessera/nn/linear.hpp"
#include "tessera/nn/threads.hpp"
#include "tessera/optim/sgd.hpp"
#include "tessera/plan/simulate.hpp"
#include "tessera/shard/fully_shard.hpp"

namespace {

using namespace tessera;

constexpr int imagined_ranks = 64;

struct Options {
  std::size_t units = 12;
  std::size_t width = 512;
  std::size_t batch = 256;
  std::size_t share = 60;  // of the computation that communication takes, in percent
  std::size_t steps = 25;
};

// Means over steps, in seconds; medians where there is one per step.
struct Times {
  double step = 0.0;
  double forward = 0.0;  // of a window
  double backward = 0.0;
};

class Layers {
 public:
  explicit Layers(const Options& options) : rows_(options.batch), x_(rows_ * options.width, 0.01f), y_(x_), dx_(x_) {
    for (std::size_t i = 0; i < options.units; ++i) {
      layers_.push_back(std::make_unique<nn::Linear<float>>(options.width, options.width));
    }
  }
  void add_to(FullyShard& model) {
    for (const auto& layer : layers_) units_.push_back(&model.add(*layer));
  }
  // Adds up the time inside of windows.
  void step(FullyShard& model, Times& sum) {
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      timed(model, i, plan::WindowKind::forward, sum.forward,
            [&](Window& window) { saved_ = layers_[i]->forward(window, stack_, matrix(x_), matrix(y_)); });
    }
    for (std::size_t i = layers_.size(); i-- > 0;) {
      timed(model, i, plan::WindowKind::backward, sum.backward,
            [&](Window& window) { layers_[i]->backward(window, stack_, saved_, matrix(y_), matrix(dx_)); });
    }
    model.update();
  }

 private:
  nn::MatrixView<float> matrix(std::vector<float>& values) { return {values.data(), rows_, values.size() / rows_}; }
  template <typename Body>
  void timed(FullyShard& model, std::size_t unit, plan::WindowKind kind, double& sum, Body body) {
    model.within(*units_[unit], kind, [&](Window& window) {
      const bench::Clock::time_point start = bench::Clock::now();
      body(window);
      sum += bench::seconds_since(start);
    });
  }

  std::vector<std::unique_ptr<nn::Linear<float>>> layers_;
  std::vector<Unit*> units_;
  std::size_t rows_;
  std::vector<float> x_;
  std::vector<float> y_;
  std::vector<float> dx_;
  nn::ActivationStack stack_;  // fp32 layers push nothing
  nn::Linear<float>::Saved saved_{};
};

// A rank sends (N - 1) shards of each segment in a ring.
double bytes_sent(const plan::Operation& operation) {
  double bytes = 0.0;
  const bool reduces = operation.kind == plan::OperationKind::reduce_scatter;
  if (!plan::is_collective(operation.kind)) return 0.0;
  for (std::size_t a = reduces ? 1 : 0; a < operation.accesses.size(); a += 2) {
    bytes += (imagined_ranks - 1) * static_cast<double>(operation.accesses[a].range.size.count());
  }
  return bytes;
}

double bytes_per_step(const plan::Plan& plan) {
  double bytes = 0.0;
  for (const plan::SegmentKind kind : {plan::SegmentKind::only, plan::SegmentKind::update}) {
    for (const plan::Operation& operation : plan.segments[*plan.find(kind)].operations) bytes += bytes_sent(operation);
  }
  return bytes;
}

struct Run {
  Times times;
  plan::Plan plan;
};

Run train(const Options& options, double bytes_per_second) {
  Run run;
  simulate({.ranks = imagined_ranks, .collectives = {.bytes_per_second = bytes_per_second}, .threads = 1},
           [&](World& world) {
             Layers layers(options);
             FullyShard model(world, {.strategy = Strategy::fsdp, .prefetch = 1});
             layers.add_to(model);
             model.finalize(Sgd{.learning_rate = 0.0f});
             std::vector<double> steps;
             for (std::size_t step = 0; step < options.steps + 2; ++step) {
               if (step == 2) run.times = {};
               const bench::Clock::time_point start = bench::Clock::now();
               layers.step(model, run.times);
               if (!(model.last_step().gradient_norm > 0.0)) throw InternalError("a step without gradients");
               steps.push_back(bench::seconds_since(start));
             }
             steps.erase(steps.begin(), steps.begin() + 2);
             run.times.step = bench::median(steps);
             run.plan = model.plan();
           });
  const auto windows = static_cast<double>(options.steps * options.units);
  run.times.forward /= windows;
  run.times.backward /= windows;
  return run;
}

// The step that the plan allows at best, with windows as long as without communication. What the step does beside
// windows stands in the update.
double best_step(const Options& options, const Run& quiet, double bytes_per_second) {
  const Times& times = quiet.times;
  const double windows = static_cast<double>(options.units) * (times.forward + times.backward);
  const auto seconds = [&](const plan::Operation& operation) {
    if (operation.kind == plan::OperationKind::begin_update) return std::max(0.0, times.step - windows);
    if (operation.kind != plan::OperationKind::window) return bytes_sent(operation) / bytes_per_second;
    return operation.window == plan::WindowKind::forward ? times.forward : times.backward;
  };
  return plan::simulate(quiet.plan, {.on_stream = seconds}).step_seconds;
}

void stay_on_one_core() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
  int first = 0;
  while (first + 1 < CPU_SETSIZE && !CPU_ISSET(first, &allowed)) ++first;
  CPU_ZERO(&allowed);
  CPU_SET(first, &allowed);
  sched_setaffinity(0, sizeof allowed, &allowed);
}

void run(const Options& options) {
  stay_on_one_core();
  nn::set_threads(1);
  const Run quiet = train(options, 0.0);
  const double communication = quiet.times.step * static_cast<double>(options.share) / 100.0;
  const double rate = bytes_per_step(quiet.plan) / communication;
  const double step = train(options, rate).times.step;
  const double best = best_step(options, quiet, rate);
  const double all = quiet.times.step + communication;
  bench::print_figure("computation", 1e3 * quiet.times.step, "ms");
  bench::print_figure("communication", 1e3 * communication, "ms");
  bench::print_figure("step", 1e3 * step, "ms");
  bench::print_figure("best-step", 1e3 * best, "ms");
  bench::print_figure("hidden", 100.0 * (all - step) / (all - best), "%");
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  tessera::trainer::CommandLine line("How much hideable communication is hidden.", "");
  line.whole("--units", options.units, {2, 1000}, "linear layers, a unit each");
  line.whole("--width", options.width, {1, 1 << 14}, "of each");
  line.whole("--batch", options.batch, {1, 1 << 16}, "rows");
  line.whole("--share", options.share, {1, 1000}, "communication, in percent of the computation");
  line.whole("--steps", options.steps, {1, 10000}, "that are timed");
  return bench::run_bench(line, argc, argv, [&] { run(options); });
}
