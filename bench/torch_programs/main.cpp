// Seven programs of libtorch's, plain and sharded (programs.inc): how far their losses are from the plain ones, and on
// one rank what a step takes, the two in turns. Prints a row for each; fails where losses are further apart than 1e-5.
//
//   build/bench/torch_programs [WIDTH [STEPS [ROUNDS]]]
#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "measure/program.hpp"
#include "measure/timing.hpp"
#include "tessera/tessera.hpp"
#include "tessera/torch/fully_shard.hpp"
#include "tessera/torch/make_module.hpp"

namespace {

// A run of a program: how many steps there are, numbers that depend on the step alone, and what its steps were like.
class Run {
 public:
  Run(int model_width, std::size_t steps) : width(model_width), steps_(steps) {}

  bool goes_on() {
    if (losses.size() == steps_) return false;
    numbers_ = at::detail::createCPUGenerator(losses.size());
    start_ = bench::Clock::now();
    return true;
  }
  void note(float loss) {
    seconds.push_back(bench::seconds_since(start_));
    losses.push_back(loss);
  }
  torch::Tensor normal(at::IntArrayRef sizes) { return torch::randn(sizes, numbers_); }
  torch::Tensor below(std::int64_t end, at::IntArrayRef sizes) {
    return torch::randint(0, end, sizes, numbers_, torch::kLong);
  }
  int number() const { return static_cast<int>(losses.size()); }

  const int width;
  std::vector<float> losses;
  std::vector<double> seconds;

 private:
  std::size_t steps_;
  at::Generator numbers_;
  bench::Clock::time_point start_;
};

// This rank's samples.
torch::Tensor part(tessera::World& world, const torch::Tensor& all) {
  return all.tensor_split(world.size())[static_cast<std::size_t>(world.rank())];
}

namespace nn = torch::nn;
using tessera::torch::FullyShard;
using tessera::torch::make_module;

namespace plain {
#define SHARDED 0
#include "torch_programs/programs.inc"
#undef SHARDED
}  // namespace plain
namespace sharded {
#define SHARDED 1
#include "torch_programs/programs.inc"
#undef SHARDED
}  // namespace sharded

struct Program {
  const char* name;
  std::function<void(Run&)> plain;
  std::function<void(Run&, tessera::World&)> sharded;
};
const std::vector<Program> programs{{"digits", plain::digits, sharded::digits},
                                    {"dcgan", plain::dcgan, sharded::dcgan},
                                    {"words", plain::words, sharded::words},
                                    {"resnet", plain::resnet, sharded::resnet},
                                    {"vae", plain::vae, sharded::vae},
                                    {"encoder", plain::encoder, sharded::encoder},
                                    {"actor_critic", plain::actor_critic, sharded::actor_critic}};

struct Size {
  int width;
  std::size_t steps;
};

Run run_sharded(const Program& program, const Size& size, int ranks) {
  Run result(size.width, size.steps);
  tessera::launch({.ranks = ranks, .threads = 1}, [&](tessera::World& world) {
    Run run(size.width, size.steps);
    program.sharded(run, world);
    if (world.rank() == 0) result.losses = run.losses, result.seconds = run.seconds;
  });
  return result;
}

double apart(const std::vector<float>& losses, const std::vector<float>& plain) {
  double most = 0.0;
  for (std::size_t i = 0; i < plain.size(); ++i) {
    most = std::max(most, std::abs(double{losses[i]} - plain[i]) / std::max(1.0, std::abs(double{plain[i]})));
  }
  return most;
}

// The fastest step of each in all rounds, in turns: other work on the machine makes steps slower, and none faster.
std::string times(const Program& program, const Size& size, std::size_t rounds) {
  std::vector<double> plain;
  std::vector<double> sharded;
  for (std::size_t round = 0; round < rounds; ++round) {
    Run timed(size.width, size.steps);
    program.plain(timed);
    plain.push_back(*std::min_element(timed.seconds.begin(), timed.seconds.end()));
    const Run ours = run_sharded(program, size, 1);
    sharded.push_back(*std::min_element(ours.seconds.begin(), ours.seconds.end()));
  }
  const double fastest = *std::min_element(plain.begin(), plain.end());
  const double ours = *std::min_element(sharded.begin(), sharded.end());
  return fmt::format(" {:9.3f} {:9.3f} {:7.3f}", 1e3 * fastest, 1e3 * ours, ours / fastest);
}

double compare(const Program& program, const Size& size, std::size_t rounds) {
  Run plain(size.width, size.steps);
  program.plain(plain);
  std::string row = fmt::format("{:13}", program.name);
  double most = 0.0;
  for (const int ranks : {1, 2, 3}) {
    const double distance = apart(run_sharded(program, size, ranks).losses, plain.losses);
    most = std::max(most, distance);
    row += fmt::format(" {:>9}", distance == 0.0 ? "same bits" : fmt::format("{:.1e}", distance));
  }
  if (rounds > 0) row += times(program, size, rounds);
  fmt::print("{}\n", row);
  return most;
}

}  // namespace

int main(int argc, char** argv) {
  std::size_t width = 1, steps = 8, rounds = 0;
  tessera::trainer::CommandLine line(
      "Seven programs of libtorch's beside themselves sharded: how far losses are apart, and what steps take.",
      "Example: torch_programs 16 30 5");
  line.whole("WIDTH", width, {1, 1 << 10}, "How many times as wide as the smallest modules");
  line.whole("STEPS", steps, {1, 1 << 20}, "Of each run");
  line.whole("ROUNDS", rounds, {0, 1 << 20}, "Timed runs of each program; 0: no times");
  return bench::run_bench(line, argc, argv, [&] {
    at::set_num_threads(1);
    fmt::print("{:13} {:>9} {:>9} {:>9}", "", "1 rank", "2 ranks", "3 ranks");
    fmt::print("{}\n", rounds > 0 ? fmt::format(" {:>9} {:>9} {:>7}", "plain, ms", "here, ms", "ratio") : "");
    double most = 0.0;
    for (const Program& program : programs) {
      most = std::max(most, compare(program, {static_cast<int>(width), steps}, rounds));
    }
    if (most > 1e-5) throw std::runtime_error("losses are further apart than 1e-5");
  });
}
