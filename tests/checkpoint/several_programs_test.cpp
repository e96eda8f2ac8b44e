// Checkpoints of models with several programs: each unit's states are those of its program's optimizer, each program
// goes on with its own counts, and a model of other programs is refused.
#include <doctest/doctest.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "../error_text.hpp"
#include "checkpoint_model.hpp"
#include "temporary_folder.hpp"
#include "tessera/base/error.hpp"
#include "tessera/checkpoint/checkpoint_reader.hpp"
#include "tessera/optim/sgd.hpp"

using namespace checkpoint_model;

namespace several_programs_test {

namespace fs = std::filesystem;

struct Play {
  int ranks;
  std::size_t replicas = 1;
  Strategy strategy = Strategy::fsdp;
  Checkpointing checkpointing = Checkpointing::blocking;
  std::string second = "second";  // name of the second program
};

// The first unit with AdamW, the others with SGD, which keeps one state.
void with_programs(const Play& play, const std::function<void(FullyShard&, const TrainingProgram&)>& body) {
  using enum plan::WindowKind;
  launch({.ranks = play.ranks}, [&](World& world) {
    Layer one({13, 17}, 29), two({211, 130}, 130), three({}, 1);
    FullyShard model(world, {.strategy = play.strategy,
                             .replicas = play.replicas,
                             .loss_scaling = kernels::dynamic_loss_scaling,
                             .checkpointing = play.checkpointing});
    const Unit* const a = &model.add(one);
    const Unit* const b = &model.add(two);
    const Unit* const c = &model.add(three);
    model.add_program({.name = "first", .windows = {{a, forward}, {a, backward}}, .optimizer = AdamW{}});
    const TrainingProgram& second =
        model.add_program({.name = play.second,
                           .windows = {{b, forward}, {c, forward}, {c, backward}, {b, backward}},
                           .optimizer = Sgd{.momentum = 0.9f}});
    model.finalize();
    body(model, second);
  });
}

kernels::StepScalars counts(std::int64_t step) {
  kernels::StepScalars scalars;
  scalars.step = step;
  scalars.skipped_steps = step / 2;
  scalars.loss_scale = static_cast<float>(step);
  scalars.good_steps = static_cast<std::int32_t>(step + 1);
  scalars.decay_power[0] = 1.0 / static_cast<double>(step);
  scalars.decay_power[1] = 0.5 / static_cast<double>(step);
  return scalars;
}

void save(const Play& play, const fs::path& directory) {
  with_programs(play, [&](FullyShard& model, const TrainingProgram& second) {
    fill(model, 1);
    model.set_step_scalars(counts(7), 0);
    model.set_step_scalars(counts(4), 1);
    model.begin(second);  // what is saved does not depend on it
    Checkpointer(model, {.directory = directory}).save({.step = 17});
  });
}

TEST_CASE("a_checkpoint_of_two_programs_has_the_same_bytes_whatever_the_strategy_and_the_ranks") {
  const TemporaryFolder folder;
  save({.ranks = 1}, folder / "expected");
  const auto expected = files_in(folder / "expected" / "step-00000017");
  std::size_t run = 0;
  for (const Strategy strategy : all_strategies) {
    const bool hybrid = strategy == Strategy::hsdp || strategy == Strategy::hfsdp;
    const fs::path other = folder / std::to_string(run++);
    save({.ranks = hybrid ? 4 : 3, .replicas = hybrid ? 2u : 1u, .strategy = strategy}, other);
    CHECK(files_in(other / "step-00000017") == expected);
  }
  CheckpointReader reader(folder / "expected" / "step-00000017");
  CHECK(reader.find(TensorKind::optimizer, "m/units.0.weight") != nullptr);
  CHECK(reader.find(TensorKind::optimizer, "v/units.0.weight") != nullptr);
  CHECK(reader.find(TensorKind::optimizer, "m/units.1.weight") == nullptr);
  CHECK(reader.find(TensorKind::optimizer, "velocity/units.1.weight") != nullptr);
  CHECK(reader.find(TensorKind::optimizer, "velocity/units.0.weight") == nullptr);
  REQUIRE(reader.state().programs.size() == 2);
  CHECK(reader.state().programs[0].program == "first");
  CHECK(reader.state().programs[1].updates == 4);
}

TEST_CASE("each_program_goes_on_with_its_own_counts_and_states") {
  const TemporaryFolder folder;
  save({.ranks = 3}, folder.path());
  for (const Checkpointing checkpointing : {Checkpointing::blocking, Checkpointing::background}) {
    with_programs({.ranks = 2, .strategy = Strategy::zero2, .checkpointing = checkpointing},
                  [&](FullyShard& model, const TrainingProgram&) {
                    Checkpointer(model, {.directory = folder.path()}).load(folder / "step-00000017");
                    CHECK(differing(model, 1) == 0);
                    CHECK(carried(model.step_scalars(0)) == carried(counts(7)));
                    CHECK(carried(model.step_scalars(1)) == carried(counts(4)));
                  });
  }
}

// One program, and one unit with an optimizer of its own.
void with_own_optimizer(const Play& play, const std::function<void(FullyShard&)>& body) {
  launch({.ranks = play.ranks}, [&](World& world) {
    Layer one({13, 17}, 29), two({211, 130}, 130), three({}, 1);
    FullyShard model(world, {.strategy = play.strategy,
                             .replicas = play.replicas,
                             .loss_scaling = kernels::dynamic_loss_scaling,
                             .checkpointing = Checkpointing::blocking});
    model.add(one);
    model.add(two, {.name = "two", .optimizer = Sgd{.momentum = 0.9f}});
    model.add(three);
    model.finalize(AdamW{});
    body(model);
  });
}

TEST_CASE("a_unit_with_an_optimizer_of_its_own_has_that_ones_states_in_a_checkpoint") {
  const TemporaryFolder folder;
  const auto save_to = [](const Play& play, const fs::path& directory) {
    with_own_optimizer(play, [&](FullyShard& model) {
      fill(model, 1);
      model.set_step_scalars(counts(7));
      Checkpointer(model, {.directory = directory}).save({.step = 17});
    });
  };
  save_to({.ranks = 1}, folder / "expected");
  for (const Strategy strategy : {Strategy::ddp, Strategy::fsdp, Strategy::hfsdp}) {
    const fs::path other = folder / std::string(to_string(strategy));
    save_to({.ranks = 4, .replicas = 2, .strategy = strategy}, other);
    CHECK(files_in(other / "step-00000017") == files_in(folder / "expected" / "step-00000017"));
  }
  CheckpointReader reader(folder / "expected" / "step-00000017");
  CHECK(reader.find(TensorKind::optimizer, "v/units.0.weight") != nullptr);
  CHECK(reader.find(TensorKind::optimizer, "velocity/two.weight") != nullptr);
  CHECK(reader.find(TensorKind::optimizer, "m/two.weight") == nullptr);
  CHECK(reader.find(TensorKind::optimizer, "velocity/units.2.weight") == nullptr);
  with_own_optimizer({.ranks = 3, .strategy = Strategy::zero2}, [&](FullyShard& model) {
    Checkpointer(model, {.directory = folder.path()}).load(folder / "expected" / "step-00000017");
    CHECK(differing(model, 1) == 0);
    CHECK(carried(model.step_scalars()) == carried(counts(7)));
  });
}

TEST_CASE("a_model_of_other_programs_is_told_so") {
  const TemporaryFolder folder;
  save({.ranks = 1}, folder.path());
  const Play other{.ranks = 2, .second = "another"};
  const std::string text = tests::error_text<DataError>([&] {
    with_programs(other, [&](FullyShard& model, const TrainingProgram&) {
      Checkpointer(model, {.directory = folder.path()}).load(folder / "step-00000017");
    });
  });
  CHECK(
      text.find("was written by a model of the programs first, second, and this one has the programs first, another") !=
      std::string::npos);
  with_programs(other, [&](FullyShard& model, const TrainingProgram&) {
    Checkpointer(model, {.directory = folder.path()}).load(folder / "step-00000017", {.partial = true});
    CHECK(differing(model, 1) == 0);
    CHECK(carried(model.step_scalars(0)) == carried(counts(7)));
    CHECK(model.step_scalars(1).step == 0);
  });
  // The first program's counts are its own, whoever is the first here.
  with_model({.ranks = 1, .rows = 211}, [&](FullyShard& model) {
    Checkpointer(model, {.directory = folder.path()}).load(folder / "step-00000017", {.partial = true});
    CHECK(model.step_scalars().step == 0);
  });
}

// The name stands in the state, which a run would otherwise find out at its first save.
TEST_CASE("a_programs_name_that_is_not_utf8_is_refused_where_the_checkpointer_is_made") {
  const TemporaryFolder folder;
  const auto made = [&] {
    with_programs({.ranks = 1, .second = "\xff"}, [&](FullyShard& model, const TrainingProgram&) {
      const Checkpointer checkpoints(model, {.directory = folder.path()});
    });
  };
  CHECK_THROWS_WITH_AS(made(), doctest::Contains("must be UTF-8"), UsageError);
}

}  // namespace several_programs_test
