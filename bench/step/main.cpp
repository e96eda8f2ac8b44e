// Times of training steps, and their parts: products, attention, optimizer, exposed communication, and the rest.
//
// usage: step_mlp|step_gpt|step_cnn|step_resnet18|step_torch_mlp [--ranks N] [--threads N] [--strategy S] [--precision
// P] [--parts] … prints figures, one per line
//
// --parts measures, in the same run and in turn with nothing, what the step's products take by themselves, and the step
// of one rank whose collectives take no time: what the real step takes longer is communication that shows. Of networks
// on images the products are bench/convolutions' business.
#include <algorithm>

#include "measure/bandwidth.hpp"
#include "measure/figure.hpp"
#include "measure/program.hpp"
#include "measure/timing.hpp"
#include "step/training.hpp"
#include "tessera/base/error.hpp"
#include "tessera/comm/run.hpp"
#include "tessera/comm/simulate.hpp"
#include "tessera/device/arena.hpp"
#include "tessera/nn/threads.hpp"

namespace {

using namespace bench;

constexpr std::size_t rounds = 7;

struct Options {
  StepOptions step = default_options();
  bool parts = false;
};

void add_options(tessera::trainer::CommandLine& line, Options& options) {
  StepOptions& step = options.step;
  add_strategy(line, step.strategy, tessera::flat_strategies);
  line.choice<tessera::Precision>("--precision", step.precision,
                                  {{"fp32", tessera::fp32_precision}, {"bf16", tessera::bf16_mixed}},
                                  "of parameters, gradients and activations");
  line.whole("--ranks", step.ranks, {1, 64}, "ranks that train");
  line.whole("--threads", step.threads, {1, 256}, "of each rank");
  line.whole("--steps", step.steps, {1, 10000}, "steps that are timed");
  line.whole("--warm-up", step.warm_up, {0, 10000}, "steps before them");
  line.whole("--batch", step.batch, {1, 1 << 16}, "rows, sequences or images of each rank");
  line.whole("--width", step.width, {1, 1 << 16}, "of each layer, or channels of the first stage");
  if (step.layers > 0) line.whole("--layers", step.layers, {1, 1000}, "layers or blocks");
  if (step.side == 0) line.whole("--seq", step.sequence, {1, 1 << 16}, "gpt: tokens of a sequence");
  if (step.side > 0) line.whole("--side", step.side, {4, 1 << 12}, "of images, in pixels");
  line.path("--weights", step.weights, "where the initial weights are written");
  line.path("--trace", step.trace, "where the timed steps are written for `tessera trace summary`");
  line.flag("--parts", options.parts, "measures the step's parts, too");
}

void require_training(const StepTimes& times) {
  if (times.losses.size() > 5 && !(times.losses.back() < times.losses.front())) {
    throw tessera::InternalError("the loss does not fall: this is no training");
  }
}

StepTimes train_ranks(const StepOptions& options) {
  StepTimes times;
  const auto threads = static_cast<int>(options.threads);
  tessera::launch({.ranks = static_cast<int>(options.ranks), .threads = threads}, [&](tessera::World& world) {
    StepTimes mine = train(world, options);
    if (world.rank() == 0) times = std::move(mine);
  });
  require_training(times);
  return times;
}

// One rank of as many, whose collectives take no time and move nothing.
double seconds_without_communication(StepOptions options) {
  options.weights.reset();
  options.trace.reset();
  StepTimes times;
  tessera::simulate({.ranks = static_cast<int>(options.ranks), .threads = static_cast<int>(options.threads)},
                    [&](tessera::World& world) { times = train(world, options); });
  return median(times.seconds);
}

// GB/s of the better triad, over 1 GiB.
double triad_bandwidth() {
  constexpr std::size_t elements = std::size_t{1} << 26;
  tessera::Arena arena(tessera::Device::cpu(), tessera::Bytes(4 * elements * sizeof(float)));
  auto* const data = reinterpret_cast<float*>(arena.data());
  const Triad of{data, data + elements, data + 2 * elements, 0.5f, elements};
  const std::vector<double> seconds =
      alternate(std::vector<std::function<void()>>{[&] { triad(of); }, [&] { triad_streaming(of); }}, rounds);
  return 12.0 * static_cast<double>(elements) / std::min(seconds[0], seconds[1]) / 1e9;
}

void print_parts(const StepOptions& options, double step, double optimizer) {
  const Products all = products(options);
  const double quiet = options.ranks == 1 ? step : seconds_without_communication(options);
  double rest = quiet - optimizer;
  if (!all.linear.empty()) {
    const ProductTimes alone = measure(all, options.precision, rounds);
    rest -= alone.linear + alone.attention;
    print_figure("linear", 1e3 * alone.linear, "ms");
    print_figure("linear-rate", all.linear_operations() / alone.linear / 1e9, "GFLOP/s");
    if (all.attentions > 0) print_figure("attention", 1e3 * alone.attention, "ms");
  }
  print_figure("optimizer", 1e3 * optimizer, "ms");
  print_figure("without-communication", 1e3 * quiet, "ms");
  print_figure("exposed-communication", 1e3 * (step - quiet), "ms");
  print_figure("rest", 1e3 * rest, "ms");
}

// Products at the rate of a large one, and AdamW (28 bytes per parameter) at the bandwidth of the triad.
void print_floor(const StepOptions& options, double step) {
  const Products all = products(options);
  double parameters = 0.0;
  for (const LinearShape& shape : all.linear) parameters += static_cast<double>((shape.in + 1) * shape.out);
  const double rate = large_product_rate(options.width, rounds);
  const double bandwidth = triad_bandwidth();
  const double floor = all.linear_operations() / rate + 28.0 * parameters / (bandwidth * 1e9);
  print_figure("large-product-rate", rate / 1e9, "GFLOP/s");
  print_figure("triad", bandwidth, "GB/s");
  print_figure("floor", 1e3 * floor, "ms");
  print_figure("step-over-floor", step / floor, "times");
}

void run(const Options& options) {
  tessera::nn::set_threads(static_cast<int>(options.step.threads));
  const StepTimes times = train_ranks(options.step);
  const double step = median(times.seconds);
  print_figure("step", 1e3 * step, "ms");
  print_figure("first-loss", static_cast<double>(times.losses.front()), "nats");
  print_figure("last-loss", static_cast<double>(times.losses.back()), "nats");
  if (!options.parts) return;
  print_parts(options.step, step, median(times.optimizer));
  if (options.step.ranks == 1 && options.step.threads == 1 &&
      options.step.precision.parameter == tessera::DType::fp32 && !products(options.step).linear.empty() &&
      products(options.step).attentions == 0) {
    print_floor(options.step, step);
  }
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  tessera::trainer::CommandLine line(std::string("Training steps of the ") + model_name + ".", "");
  add_options(line, options);
  return run_bench(line, argc, argv, [&] { run(options); });
}
