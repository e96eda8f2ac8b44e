// train_gpt: trains a GPT with sharded data parallelism, and lets it write. Try: ./train_gpt --ranks 4
#include <optional>

#include "common/blas_kernels.hpp"
#include "common/program.hpp"
#include "train_gpt/job.hpp"

namespace {

using namespace examples;

int run(int argc, char** argv) {
  const std::optional<GptOptions> options = parse_options(argc, argv);
  if (!options) return 0;
  const Job job = make_job(*options);
  return run_ranks(job.options.run, [&](tessera::World& world, RunMetrics* metrics) { train(world, job, metrics); });
}

}  // namespace

int main(int argc, char** argv) {
  examples::require_fast_blas(argv);
  return examples::run_program([&] { return run(argc, argv); });
}
