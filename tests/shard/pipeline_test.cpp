// Two micro-batches on their way through the stages of a pipeline at once: the weights are those of one rank that has
// all layers.
#include <doctest/doctest.h>

#include <cmath>

#include "pipeline.hpp"
#include "tessera/base/error.hpp"
#include "tessera/comm/run.hpp"

namespace pipeline_test {

using namespace pipeline;

TEST_CASE("stages_of_a_pipeline_train_as_one_rank_does") {
  for (const std::size_t stages : {std::size_t{2}, std::size_t{3}, std::size_t{6}}) {
    for (const Strategy strategy : {Strategy::fsdp, Strategy::ddp}) {
      const std::size_t data = stages == 2 ? 2 : 1;
      Values alone, parted;
      launch({}, [&](World& world) {
        alone = Pipeline(world, {.stages = 1, .layers = stages, .micro_batches = 2 * data}).train();
      });
      launch({.ranks = static_cast<int>(stages * data)}, [&](World& world) {
        const Values weights = Pipeline(world, {.stages = stages, .layers = stages, .strategy = strategy}).train();
        if (world.rank() == 0) parted = weights;
      });
      for (std::size_t i = 0; i < alone.size(); ++i) CHECK(std::abs(alone[i] - parted[i]) < 1e-6f);
    }
  }
}

TEST_CASE("calls_that_a_role_does_not_have_are_refused") {
  launch({.ranks = 2}, [](World& world) {
    Pipeline job(world, {.at_message = [](Window& window, const Collective& message) {
                   if (message.options().kind == Kind::send) return;
                   CHECK_THROWS_WITH_AS(window.contribution<float>(message), doctest::Contains("nothing is written"),
                                        UsageError);
                 }});
    CHECK(job.mine == static_cast<std::size_t>(world.rank()));
    job.train();
    CHECK_THROWS_WITH_AS(job.models[job.mine]->whole(*job.stages[job.mine]->weights[0]),
                         doctest::Contains("where ranks have roles"), UsageError);
    CHECK_THROWS_WITH_AS(job.models[1 - job.mine]->synchronize(), doctest::Contains("has another one"), UsageError);
  });
}

}  // namespace pipeline_test
