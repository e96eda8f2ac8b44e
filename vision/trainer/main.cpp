// train_vision: trains a network to tell images apart, with sharded data parallelism. Try: ./train_vision --ranks 4
#include <fmt/format.h>

#include <optional>

#include "tessera/trainer/program.hpp"
#include "tessera/trainer/start.hpp"
#include "vision/trainer/job.hpp"

namespace {

using namespace train_vision;

int run(int argc, char** argv) {
  const std::optional<VisionOptions> options = parse_options(argc, argv);
  if (!options) return 0;
  const Job job = make_job(*options);
  if (options->check_data) {
    fmt::print("{}", dealt_images(job));
    return 0;
  }
  return run_ranks(job.options.run, [&](tessera::World& world, RunMetrics* metrics) { train(world, job, metrics); });
}

}  // namespace

int main(int argc, char** argv) {
  tessera::trainer::require_fast_blas(argv);
  return tessera::trainer::run_program([&] { return run(argc, argv); });
}
