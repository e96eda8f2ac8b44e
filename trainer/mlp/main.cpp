// train_mlp: trains a multilayer perceptron with sharded data parallelism. Try: ./train_mlp --ranks 4 --strategy fsdp
#include <optional>

#include "tessera/trainer/program.hpp"
#include "tessera/trainer/start.hpp"
#include "trainer/mlp/job.hpp"

namespace {

using namespace train_mlp;

int run(int argc, char** argv) {
  const std::optional<MlpOptions> options = parse_options(argc, argv);
  if (!options) return 0;
  const Job job = make_job(*options);
  return run_ranks(job.options.run, [&](tessera::World& world, RunMetrics* metrics) { train(world, job, metrics); });
}

}  // namespace

int main(int argc, char** argv) {
  tessera::trainer::require_fast_blas(argv);
  return tessera::trainer::run_program([&] { return run(argc, argv); });
}
