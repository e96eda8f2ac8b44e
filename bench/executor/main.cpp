// Measures what the executor costs the host: processor time of the rank's own thread per unit and pass, for windows
// that compute nothing. It runs one rank of an imagined job, whose collectives take no time, so that every operation of
// the plan is there; the compute stream is a queue, as on a GPU, so that the thread launches and does not compute.
//
// usage: executor [--units N] [--steps N] [--strategy S]    prints figures, one per line
#include <ctime>
#include <memory>
#include <vector>

#include "measure/figure.hpp"
#include "measure/program.hpp"
#include "measure/timing.hpp"
#include "tessera/base/error.hpp"
#include "tessera/comm/simulate.hpp"
#include "tessera/optim/adamw.hpp"
#include "tessera/shard/fully_shard.hpp"

namespace {

using namespace tessera;

constexpr double passes = 2.0;  // forward and backward; the update counts as their part

struct Options {
  std::size_t units = 64;
  std::size_t steps = 200;
  Strategy strategy = Strategy::fsdp;
};

// One parameter, and a gradient that is asked for.
class Empty : public Module {
 public:
  void visit(ModuleVisitor& visitor) override { visitor("weight", weight_); }
  void forward(Window& window) { seen_ += window.parameter<float>(weight_).size(); }
  void backward(Window& window) {
    float* const gradient = window.gradient<float>(weight_).data();
    window.stream().submit([gradient] { gradient[0] = 1.0f; });
  }
  std::size_t seen() const { return seen_; }

 private:
  Parameter weight_{{256}, Initial::ones()};
  std::size_t seen_ = 0;
};

double thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// Host seconds of each step.
std::vector<double> run_steps(World& world, const Options& options) {
  std::vector<std::unique_ptr<Empty>> units;
  FullyShard model(world, {.strategy = options.strategy, .diagnostics = {.queue_compute = true}});
  for (std::size_t i = 0; i < options.units; ++i) model.add(*units.emplace_back(std::make_unique<Empty>()));
  model.finalize(AdamW{});
  std::vector<double> seconds;
  for (std::size_t step = 0; step < options.steps + 2; ++step) {
    const double start = thread_seconds();
    for (const auto& unit : units) model.forward(*unit);
    for (std::size_t i = units.size(); i-- > 0;) model.backward(*units[i]);
    model.update();
    if (step >= 2) seconds.push_back(thread_seconds() - start);
    model.synchronize();
  }
  const bool right = units.back()->seen() == 256 * (options.steps + 2) &&
                     model.last_step().updates == static_cast<std::int64_t>(options.steps + 2);
  if (!right) throw InternalError("the windows did not run");
  return seconds;
}

void run(const Options& options) {
  simulate({.ranks = 2, .threads = 1}, [&](World& world) {
    const double step = bench::median(run_steps(world, options));
    bench::print_figure("host-time-per-unit-and-pass", 1e6 * step / static_cast<double>(options.units) / passes, "us");
  });
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  tessera::trainer::CommandLine line("Host time of the executor.", "");
  line.whole("--units", options.units, {1, 10000}, "of the model");
  line.whole("--steps", options.steps, {1, 100000}, "that are timed");
  bench::add_strategy(line, options.strategy, flat_strategies);
  return bench::run_bench(line, argc, argv, [&] { run(options); });
}
