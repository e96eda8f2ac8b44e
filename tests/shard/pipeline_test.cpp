// Two micro-batches on their way through the stages of a pipeline at once: the weights are those of one rank that has
// all layers.
#include <doctest/doctest.h>

#include <cmath>

#include "pipeline.hpp"
#include "tessera/base/error.hpp"
#include "tessera/comm/run.hpp"
#include "tessera/optim/adamw.hpp"
#include "toy_model.hpp"

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

TEST_CASE("what_takes_all_ranks_of_a_job_is_refused_to_roles") {
  const auto check = [](const char* text, FullyShardOptions options, const AdamW& optimizer = {}) {
    const std::string failure = toy::failure_of(2, [&](World& world) {
      Stage stage({.stages = 1}, 0);
      FullyShard model(world, options);
      model.add(stage, "net");
      ModelRole role{"only", &model, optimizer};
      finalize_roles({&role, 1});
    });
    CHECK_MESSAGE(toy::contains(failure, text), failure);
  };
  check("need FullyShardOptions::mesh with 1 places along pipeline", {});
  const plan::MeshShape mesh{{Axis::pipeline, 1}, {Axis::replicate, 2}};
  check("role only has clip_norm", {.mesh = mesh}, {.clip_norm = 1.0f});
  check("has outer steps", {.mesh = mesh, .outer = {.every = 1}});
  check("has a dynamic loss scale", {.mesh = mesh, .loss_scaling = kernels::LossScaling{.dynamic = true}});
  check("has FullyShardOptions::checkpointing", {.mesh = mesh, .checkpointing = Checkpointing::blocking});
}

}  // namespace pipeline_test
