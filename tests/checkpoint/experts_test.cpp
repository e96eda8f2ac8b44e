// Checkpoints and files of weights of models with units that each replica has of its own: every replica's tensors stand
// in them under its number, and come back to any mesh of as many replicas.
#include <doctest/doctest.h>

#include <filesystem>
#include <map>
#include <string>

#include "../error_text.hpp"
#include "../extent.hpp"
#include "checkpoint_model.hpp"
#include "temporary_folder.hpp"
#include "tessera/base/error.hpp"
#include "tessera/checkpoint/checkpoint_reader.hpp"
#include "tessera/checkpoint/safetensors.hpp"
#include "tessera/checkpoint/weights.hpp"

using namespace checkpoint_model;

namespace checkpointed_experts_test {

namespace fs = std::filesystem;

Job experts(std::size_t replicas, int ranks_of_replica, Strategy strategy = Strategy::fsdp) {
  return {.ranks = static_cast<int>(replicas) * ranks_of_replica,
          .replicas = replicas,
          .strategy = strategy,
          .rows = 211,
          .experts = true};
}

void save(const Job& job, const fs::path& directory) {
  with_model(job, [&](FullyShard& model) {
    fill(model, 1);
    Checkpointer(model, {.directory = directory}).save({.step = 17});
  });
}
std::map<std::string, std::string> saved_in(const fs::path& directory) { return files_in(directory / "step-00000017"); }

TEST_CASE("a_checkpoint_of_experts_has_the_same_bytes_whatever_the_strategy_and_the_ranks_of_a_replica") {
  const TemporaryFolder folder;
  save(experts(2, 1), folder / "expected");
  const auto expected = saved_in(folder / "expected");
  int number = 0;
  for (const int ranks_of_replica : tests::all_or_last({1, 3, 2})) {
    for (const Strategy strategy : all_strategies) {
      INFO(ranks_of_replica << " ranks of a replica, " << to_string(strategy));
      const fs::path directory = folder / std::to_string(number++);
      Job job = experts(2, ranks_of_replica, strategy);
      if (number % 2 == 0) job.precision = bf16_mixed;
      save(job, directory);
      CHECK(saved_in(directory) == expected);
    }
  }
}

TEST_CASE("every_replica_gets_its_own_expert_back_on_any_mesh_of_as_many") {
  const TemporaryFolder folder;
  for (const std::size_t replicas : {1u, 2u, 3u}) {
    const fs::path directory = folder / std::to_string(replicas);
    save(experts(replicas, 2), directory);
    for (const int ranks_of_replica : tests::all_or_last({1, 3, 2})) {
      for (const Strategy strategy : {Strategy::ddp, Strategy::zero1, Strategy::hfsdp, Strategy::fsdp}) {
        INFO(replicas << " replicas of " << ranks_of_replica << " ranks, " << to_string(strategy));
        with_model(experts(replicas, ranks_of_replica, strategy), [&](FullyShard& model) {
          fill(model, 2);
          Checkpointer checkpoints(model, {.directory = directory});
          checkpoints.load(checkpoints.latest()->path);
          CHECK(differing(model, 1) == 0);
        });
      }
    }
  }
}

TEST_CASE("the_copy_of_a_save_in_the_background_has_the_experts") {
  const TemporaryFolder folder;
  save(experts(2, 2), folder / "expected");
  Job job = experts(2, 2, Strategy::ddp);
  job.checkpointing = Checkpointing::background;
  with_model(job, [&](FullyShard& model) {
    Checkpointer checkpoints(model, {.directory = folder / "copied"});
    fill(model, 1);
    checkpoints.save_async({.step = 17});
    fill(model, 2);
    checkpoints.wait();
  });
  CHECK(saved_in(folder / "copied") == saved_in(folder / "expected"));
}

TEST_CASE("weights_of_experts_have_the_number_of_their_replica") {
  const TemporaryFolder folder;
  const fs::path path = folder / "weights.safetensors";
  with_model(experts(2, 2), [&](FullyShard& model) {
    fill(model, 1);
    dump_weights(model, path);
  });
  const SafetensorsReader file(path);
  CHECK(file.find("units.0.weight") != nullptr);
  CHECK(file.find("units.1.weight") == nullptr);
  for (const char* name : {"units.1.0.weight", "units.1.1.weight", "units.1.0.fixed", "units.1.1.bias"}) {
    INFO(name);
    CHECK(file.find(name) != nullptr);
  }
  for (const Strategy strategy : {Strategy::ddp, Strategy::hsdp}) {
    with_model(experts(2, 3, strategy), [&](FullyShard& model) {
      fill(model, 1);
      const auto move = [&](std::uint64_t salt) {
        for (std::size_t u = 0; u < model.unit_count(); ++u) {
          for_each_piece(model, model.unit(u), "master", "",
                         [&](const std::string& name, std::size_t first, auto values) {
                           const Values other(name, salt);
                           for (std::size_t i = 0; i < values.size(); ++i) values[i] = other[first + i];
                         });
        }
        model.shards_changed();
      };
      move(2);
      load_weights(model, path);
      CHECK(differing(model, 1) == 0);
    });
  }
}

TEST_CASE("another_number_of_experts_is_refused_by_name") {
  const TemporaryFolder folder;
  save(experts(2, 1), folder.path());
  const std::string text = tests::error_text<std::exception>([&] {
    with_model(experts(3, 1), [&](FullyShard& model) {
      Checkpointer checkpoints(model, {.directory = folder.path()});
      checkpoints.load(checkpoints.latest()->path);
    });
  });
  INFO(text);
  CHECK(text.find("model tensor \"units.1.2.weight\" [211, 1301] is missing") != std::string::npos);
}

// One of a replica's ranks differs from its first: a save would lose that.
TEST_CASE("buffers_of_experts_are_equal_in_their_replica") {
  const TemporaryFolder folder;
  const std::string text = tests::error_text<std::exception>([&] {
    with_model(experts(2, 2), [&](FullyShard& model) {
      fill(model, 1);
      if (model.world().rank() == 3) model.buffer(*model.unit(1).buffers()[0])[0] += 1.0f;
      Checkpointer(model, {.directory = folder.path()}).save({.step = 17});
    });
  });
  INFO(text);
  CHECK(text.find(
            "buffer units.1.mean has other values on rank 3 than on rank 2, and a checkpoint has one for all that have "
            "the unit in common") != std::string::npos);
}

}  // namespace checkpointed_experts_test
