// Measures what sharding costs a torch module on one rank: times of forward and backward passes, and of whole steps, of
// one perceptron that is plain and of one under each strategy, in turns. One thread.
//
//   build/bench/torch_overhead [WIDTH [LAYERS [BATCH]]]
#include <fmt/format.h>
#include <torch/torch.h>

#include <memory>
#include <vector>

#include "measure/program.hpp"
#include "measure/timing.hpp"
#include "tessera/tessera.hpp"
#include "tessera/torch/fully_shard.hpp"
#include "tessera/torch/make_module.hpp"

namespace {

namespace nn = torch::nn;

struct Shape {
  std::int64_t width;
  int layers;
  std::int64_t batch;
};

struct Net : nn::Module {
  explicit Net(const Shape& shape) {
    for (int i = 0; i < shape.layers; ++i) layers->push_back(nn::Linear(shape.width, shape.width));
    register_module("layers", layers);
  }
  torch::Tensor forward(torch::Tensor x) {
    for (const auto& layer : *layers) x = torch::relu(layer->as<nn::Linear>()->forward(x));
    return x.square().mean();
  }
  nn::ModuleList layers;
};

struct Times {
  std::vector<double> passes;  // milliseconds
  std::vector<double> steps;
};

template <typename Passes, typename Update>
void time_step(Times& times, Passes passes, Update update) {
  const bench::Clock::time_point start = bench::Clock::now();
  passes();
  times.passes.push_back(1e3 * bench::seconds_since(start));
  update();
  times.steps.push_back(1e3 * bench::seconds_since(start));
}

using Sharded = tessera::torch::FullyShard<Net>;

void print_row(std::string_view name, const Times& times, const Times& plain) {
  fmt::print("{:6} {:10.3f} {:7.3f} {:10.3f} {:7.3f}\n", name, bench::median(times.passes),
             bench::median(times.passes) / bench::median(plain.passes), bench::median(times.steps),
             bench::median(times.steps) / bench::median(plain.steps));
}

void compare(tessera::World& world, const Shape& shape, int turns) {
  const torch::Tensor input = torch::ones({shape.batch, shape.width});
  const auto plain = tessera::torch::make_module<Net>(1, shape);
  torch::optim::AdamW optimizer(plain->parameters(), torch::optim::AdamWOptions(1e-4));
  std::vector<std::unique_ptr<Sharded>> sharded;
  for (const tessera::Strategy strategy : tessera::flat_strategies) {
    sharded.push_back(
        std::make_unique<Sharded>(world, tessera::torch::make_module<Net>(1, shape),
                                  tessera::torch::ModuleOptions{.units = tessera::torch::children_of("layers")},
                                  tessera::FullyShardOptions{.strategy = strategy}));
    sharded.back()->finalize(tessera::AdamW{.learning_rate = 1e-4f});
  }
  Times plain_times;
  std::vector<Times> times(sharded.size());
  for (int turn = -3; turn < turns; ++turn) {
    if (turn == 0) plain_times = {}, times.assign(sharded.size(), {});
    time_step(
        plain_times,
        [&] {
          plain->zero_grad(true);
          plain->forward(input).backward();
        },
        [&] { optimizer.step(); });
    for (std::size_t i = 0; i < sharded.size(); ++i) {
      Sharded& model = *sharded[i];
      time_step(
          times[i], [&] { model.backward(model.forward(input)); },
          [&] {
            model.update();
            model.sharded().synchronize();
          });
    }
  }
  fmt::print("{} layers of {} x {}, batch {}: milliseconds, medians of {}, and ratios to the plain module\n",
             shape.layers, shape.width, shape.width, shape.batch, turns);
  fmt::print("{:6} {:>10} {:>7} {:>10} {:>7}\n", "", "passes", "ratio", "step", "ratio");
  print_row("plain", plain_times, plain_times);
  for (std::size_t i = 0; i < sharded.size(); ++i) {
    print_row(tessera::to_string(tessera::flat_strategies[i]), times[i], plain_times);
  }
}

}  // namespace

int main(int argc, char** argv) {
  std::size_t width = 1024, layers = 8, batch = 64;
  tessera::trainer::CommandLine line("What sharding costs a torch module on one rank with one thread, by strategy.",
                                     "Example: torch_overhead 256 4 16");
  line.whole("WIDTH", width, {1, 1 << 16}, "Of a layer");
  line.whole("LAYERS", layers, {1, 1 << 16}, "Of the perceptron");
  line.whole("BATCH", batch, {1, 1 << 24}, "Samples");
  return bench::run_bench(line, argc, argv, [&] {
    const Shape shape{static_cast<std::int64_t>(width), static_cast<int>(layers), static_cast<std::int64_t>(batch)};
    tessera::launch({.threads = 1}, [&](tessera::World& world) { compare(world, shape, 31); });
  });
}
