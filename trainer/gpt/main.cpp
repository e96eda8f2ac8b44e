// train_gpt: trains a GPT with sharded data parallelism, and lets it write. Try: ./train_gpt --ranks 4
#include <optional>

#include "tessera/trainer/program.hpp"
#include "tessera/trainer/start.hpp"
#include "trainer/gpt/job.hpp"

namespace {

using namespace train_gpt;

int run(int argc, char** argv) {
  const std::optional<GptOptions> options = parse_options(argc, argv);
  if (!options) return 0;
  const Job job = make_job(*options);
  return run_ranks(job.options.run, [&](tessera::World& world, RunMetrics* metrics) { train(world, job, metrics); });
}

}  // namespace

int main(int argc, char** argv) {
  tessera::trainer::require_fast_blas(argv);
  return tessera::trainer::run_program([&] { return run(argc, argv); });
}
