// Checkpoints between outer steps: what replicas have in common, and what each has for itself, come back to a mesh of
// as many replicas; from a checkpoint without replicas all set out together.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "../extent.hpp"
#include "checkpoint_model.hpp"
#include "temporary_folder.hpp"
#include "tessera/base/error.hpp"
#include "tessera/checkpoint/checkpoint_reader.hpp"
#include "tessera/plan/memory.hpp"

using namespace checkpoint_model;

namespace outer_steps_test {

namespace fs = std::filesystem;

Job apart(std::size_t replicas, int ranks_of_replica, Strategy strategy = Strategy::hsdp) {
  return {.ranks = static_cast<int>(replicas) * ranks_of_replica,
          .replicas = replicas,
          .strategy = strategy,
          .rows = 211,
          .outer = {.every = 5, .learning_rate = 0.7f, .momentum = 0.9f}};
}

// Each replica counts for itself.
kernels::StepScalars counts_of(FullyShard& model) {
  const plan::MeshShape& mesh = model.plan().mesh;
  const auto replica = mesh.index_of(Axis::replicate, mesh.place_of(static_cast<std::size_t>(model.world().rank())));
  kernels::StepScalars scalars = model.step_scalars();
  scalars.step = 17 - static_cast<std::int64_t>(replica);
  scalars.skipped_steps = static_cast<std::int64_t>(replica);
  scalars.loss_scale = 1024.0f * static_cast<float>(1 + replica);
  scalars.good_steps = 3 + static_cast<std::int32_t>(replica);
  scalars.decay_power[0] = 0.5 / static_cast<double>(1 + replica);
  scalars.decay_power[1] = 0.25 / static_cast<double>(1 + replica);
  return scalars;
}

void save(const Job& job, const fs::path& directory) {
  with_model(job, [&](FullyShard& model) {
    fill(model, 1);
    if (model.plan().diverges()) model.set_step_scalars(counts_of(model));
    Checkpointer(model, {.directory = directory}).save({.step = 17});
  });
}

std::map<std::string, std::string> saved_in(const fs::path& directory) { return files_in(directory / "step-00000017"); }

constexpr Strategy strategies[] = {Strategy::ddp, Strategy::zero1, Strategy::zero2, Strategy::fsdp, Strategy::hsdp};

TEST_CASE("between_outer_steps_a_checkpoint_has_the_same_bytes_whatever_the_strategy_and_the_ranks_of_a_replica") {
  const TemporaryFolder folder;
  save(apart(2, 1), folder / "expected");
  const auto expected = saved_in(folder / "expected");
  REQUIRE(expected.size() == 5);
  int number = 0;
  for (const int ranks_of_replica : tests::all_or_last({1, 3, 2})) {
    for (const Strategy strategy : strategies) {
      INFO(ranks_of_replica << " ranks of a replica, " << to_string(strategy));
      const fs::path directory = folder / std::to_string(number++);
      save(apart(2, ranks_of_replica, strategy), directory);
      CHECK(saved_in(directory) == expected);
    }
  }
}

TEST_CASE("every_replica_gets_its_own_values_back_on_any_mesh_of_as_many") {
  const TemporaryFolder folder;
  for (const std::size_t replicas : {2u, 3u}) {
    const fs::path directory = folder / std::to_string(replicas);
    save(apart(replicas, 2), directory);
    for (const int ranks_of_replica : tests::all_or_last({1, 2, 3})) {
      for (const Strategy strategy : {Strategy::ddp, Strategy::hsdp}) {
        INFO(replicas << " replicas of " << ranks_of_replica << " ranks, " << to_string(strategy));
        with_model(apart(replicas, ranks_of_replica, strategy), [&](FullyShard& model) {
          fill(model, 2);
          Checkpointer checkpoints(model, {.directory = directory});
          const CheckpointState state = checkpoints.load(checkpoints.latest()->path);
          CHECK(differing(model, 1) == 0);
          CHECK(state.replicas.size() == replicas);
          CHECK(carried(model.step_scalars()) == carried(counts_of(model)));
        });
      }
    }
  }
}

TEST_CASE("the_copy_of_a_save_in_the_background_has_all_that_outer_steps_keep") {
  const TemporaryFolder folder;
  save(apart(2, 2), folder / "expected");
  Job job = apart(2, 2);
  job.checkpointing = Checkpointing::background;
  with_model(job, [&](FullyShard& model) {
    Checkpointer checkpoints(model, {.directory = folder / "copied"});
    fill(model, 1);
    model.set_step_scalars(counts_of(model));
    checkpoints.save_async({.step = 17});
    fill(model, 2);
    checkpoints.wait();
  });
  CHECK(saved_in(folder / "copied") == saved_in(folder / "expected"));
}

// Elements that are not those that fill() gave to the tensors of these names in the checkpoint without replicas.
std::size_t other_than_stored(FullyShard& model, const std::string& state, const std::string& prefix = "") {
  std::size_t count = 0;
  for (std::size_t u = 0; u < model.unit_count(); ++u) {
    for_each_piece(model, model.unit(u), state, prefix, counting_differences(1, count));
  }
  return count;
}

bool is_zero(FullyShard& model, const std::string& state) {
  bool result = true;
  for (std::size_t u = 0; u < model.unit_count(); ++u) {
    for (const ParameterPiece& piece : model.pieces(model.unit(u), state)) {
      result = result && std::all_of(piece.values.begin(), piece.values.end(), [](float value) { return value == 0; });
    }
  }
  return result;
}

void check_that_all_set_out_together(FullyShard& model) {
  CHECK(other_than_stored(model, "master") == 0);
  CHECK(other_than_stored(model, "m", "m/") == 0);
  CHECK(other_than_stored(model, "v", "v/") == 0);
  CHECK(other_than_stored(model, "anchor") == 0);
  CHECK(is_zero(model, "outer momentum"));
}

// With one row rank 1 of 3 has the end of a weight in its replica's share, but in that of one replica alone as its own.
TEST_CASE("from_a_checkpoint_without_replicas_all_of_them_set_out") {
  for (const std::size_t rows : {1u, 211u}) {
    const TemporaryFolder folder;
    Job together = apart(1, 3);
    together.rows = rows;
    together.outer = {};
    save(together, folder.path());
    for (const int ranks_of_replica : tests::all_or_last({3, 2})) {
      for (const Strategy strategy : strategies) {
        INFO(rows << " rows, " << ranks_of_replica << " ranks of a replica, " << to_string(strategy));
        Job job = apart(2, ranks_of_replica, strategy);
        job.rows = rows;
        with_model(job, [&](FullyShard& model) {
          fill(model, 2);
          Checkpointer checkpoints(model, {.directory = folder.path()});
          CHECK(checkpoints.load(checkpoints.latest()->path).replicas.empty());
          check_that_all_set_out_together(model);
        });
      }
    }
  }
}

std::string refusal(const Job& job, const fs::path& directory) {
  std::string text;
  with_model(job, [&](FullyShard& model) {
    Checkpointer checkpoints(model, {.directory = directory});
    fill(model, 2);
    try {
      checkpoints.load(checkpoints.latest()->path);
    } catch (const DataError& error) {
      if (model.world().rank() == 0) text = error.what();
    }
    CHECK(differing(model, 2) == 0);
  });
  return text;
}

TEST_CASE("other_numbers_of_replicas_are_refused_and_get_what_all_had_in_common_where_a_part_is_enough") {
  const TemporaryFolder folder;
  save(apart(2, 1), folder.path());
  const std::string path = (folder.path() / "step-00000017").string();
  const auto expected = [&](const std::string& of_model) {
    return path +
           ": was written between outer steps of 2 replicas, each with weights and states of its own, and the "
           "model has " +
           of_model +
           ": load it with as many, or go on from what they had in common last, the "
           "weights alone, in its model.safetensors";
  };
  Job together = apart(2, 1);
  together.outer = {};
  CHECK(refusal(together, folder.path()) == expected("no outer steps"));
  CHECK(refusal(apart(3, 1), folder.path()) == expected("outer steps of 3 replicas"));
  for (const Job& job : {together, apart(3, 2)}) {
    with_model(job, [&](FullyShard& model) {
      fill(model, 2);
      Checkpointer checkpoints(model, {.directory = folder.path()});
      checkpoints.load(checkpoints.latest()->path, {.partial = true});
      CHECK(other_than_stored(model, "master") == 0);
      CHECK(model.step_scalars().step == 0);  // no replica's states are the model's, nor are counts
      if (model.plan().diverges()) CHECK(other_than_stored(model, "anchor") == 0);
    });
  }
}

TEST_CASE("the_files_name_what_is_common_and_what_is_whose") {
  const TemporaryFolder folder;
  save(apart(2, 1), folder.path());
  const CheckpointReader reader(folder.path() / "step-00000017");
  std::set<std::string> states;
  for (const CheckpointTensor& tensor : reader.tensors(TensorKind::optimizer)) {
    if (tensor.name.ends_with("/units.0.weight")) states.insert(tensor.name);
  }
  CHECK(states == std::set<std::string>{"outer_momentum/units.0.weight", "replica.0/m/units.0.weight",
                                        "replica.0/master/units.0.weight", "replica.0/v/units.0.weight",
                                        "replica.1/m/units.0.weight", "replica.1/master/units.0.weight",
                                        "replica.1/v/units.0.weight"});
  CHECK(reader.tensors(TensorKind::model).size() == 12);
}

}  // namespace outer_steps_test
