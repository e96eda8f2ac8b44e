// Checkpoints of a model: the same files whatever the strategy and the ranks, every element back where it belongs, and
// all or nothing.
#include "tessera/checkpoint/checkpointer.hpp"

#include <doctest/doctest.h>

#include <fstream>
#include <iterator>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "../extent.hpp"
#include "checkpoint_model.hpp"
#include "temporary_folder.hpp"
#include "tessera/base/error.hpp"
#include "tessera/checkpoint/safetensors.hpp"
#include "tessera/plan/memory.hpp"

using namespace checkpoint_model;

namespace checkpointer_test {

namespace fs = std::filesystem;

// A reduced matrix is without zero1 and zero2, which show nothing that the others do not.
std::vector<Strategy> strategies() {
  if (tests::reduced()) return {Strategy::ddp, Strategy::fsdp};
  return {Strategy::ddp, Strategy::zero1, Strategy::zero2, Strategy::fsdp};
}

std::set<std::string> names(const fs::path& folder) {
  std::set<std::string> result;
  for (const auto& entry : fs::directory_iterator(folder)) result.insert(entry.path().filename().string());
  return result;
}

TrainingProgress progress(std::uint64_t step) {
  return {.step = step,
          .sampler = SamplerState{.samples = 1000, .seed = 5, .epoch = 2, .position = 36},
          .values = {{"data", "plays"}}};
}

void save(const Job& job, const fs::path& directory, std::uint64_t step, std::uint64_t salt = 1) {
  with_model(job, [&](FullyShard& model) {
    fill(model, salt);
    Checkpointer(model, {.directory = directory}).save(progress(step));
  });
}

// The errors that `work` fails with, one per rank that fails.
template <typename Error>
std::vector<std::string> failures(const Job& job, const std::function<void(FullyShard&)>& work) {
  std::mutex mutex;
  std::vector<std::string> messages;
  with_model(job, [&](FullyShard& model) {
    try {
      work(model);
    } catch (const Error& error) {
      const std::lock_guard lock(mutex);
      messages.emplace_back(error.what());
    }
  });
  return messages;
}

bool mention(const std::vector<std::string>& messages, std::size_t count, const std::string& text) {
  for (const std::string& message : messages) {
    INFO(message);
    CHECK(message.find(text) != std::string::npos);
  }
  return messages.size() == count;
}

TEST_CASE("a_checkpoint_has_the_same_bytes_whatever_the_strategy_and_the_ranks") {
  const TemporaryFolder folder;
  save({}, folder / "1", 7);
  const auto expected = files_in(folder / "1/step-00000007");
  CHECK(expected.size() == 5);
  for (const int ranks : tests::rank_counts({1, 2, 3, 5, 7})) {
    for (const Strategy strategy : strategies()) {
      const fs::path directory = folder / (std::to_string(ranks) + std::string(to_string(strategy)));
      save({.ranks = ranks, .strategy = strategy, .precision = ranks % 2 == 0 ? bf16_mixed : fp32_precision}, directory,
           7);
      CHECK(files_in(directory / "step-00000007") == expected);
      CHECK(names(directory) == std::set<std::string>{".lock", "step-00000007"});
      fs::remove_all(directory);
    }
  }
}

// Each of a mesh's ranks writes what it alone owns.
TEST_CASE("any_mesh_writes_the_bytes_of_one_rank_and_loads_what_any_other_wrote") {
  const TemporaryFolder folder;
  save({}, folder / "1", 7);
  const auto expected = files_in(folder / "1/step-00000007");
  for (const std::size_t replicas : tests::all_or_last({6u, 3u, 2u})) {
    for (const Strategy strategy : {Strategy::ddp, Strategy::zero2, Strategy::hsdp, Strategy::hfsdp}) {
      INFO(replicas << " replicas, " << to_string(strategy));
      const Job job{.ranks = 6, .replicas = replicas, .strategy = strategy, .precision = bf16_mixed};
      const fs::path directory = folder / (std::to_string(replicas) + std::string(to_string(strategy)));
      save(job, directory, 7);
      CHECK(files_in(directory / "step-00000007") == expected);
      fs::remove_all(directory);
      with_model(job, [&](FullyShard& model) {
        fill(model, 2);
        Checkpointer checkpoints(model, {.directory = folder / "1"});
        checkpoints.load(checkpoints.latest()->path);
        CHECK(differing(model, 1) == 0);
      });
    }
  }
}

TEST_CASE("every_element_is_loaded_by_any_number_of_ranks_and_any_strategy") {
  const TemporaryFolder folder;
  save({.ranks = 4}, folder.path(), 7);
  for (const int ranks : tests::rank_counts({1, 2, 3, 7})) {
    for (const Strategy strategy : strategies()) {
      with_model({.ranks = ranks, .strategy = strategy, .precision = bf16_mixed}, [&](FullyShard& model) {
        fill(model, 2);
        CHECK(differing(model, 1) > 0);
        Checkpointer checkpoints(model, {.directory = folder.path()});
        const auto latest = checkpoints.latest();
        REQUIRE(latest);
        CHECK(latest->step == 7);
        const CheckpointState state = checkpoints.load(latest->path);
        CHECK(differing(model, 1) == 0);
        CHECK(state.step == 7);
        CHECK(state.sampler == progress(7).sampler);
        CHECK(state.values == progress(7).values);
      });
    }
  }
}

TEST_CASE("what_updates_carry_from_step_to_step_comes_back") {
  const TemporaryFolder folder;
  kernels::StepScalars saved;
  saved.step = 17;
  saved.skipped_steps = 3;
  saved.loss_scale = 4096.0f;
  saved.good_steps = 11;
  saved.decay_power[0] = 0.1234567890123;
  saved.decay_power[1] = 0.9876543210987;
  with_model({.ranks = 2}, [&](FullyShard& model) {
    model.set_step_scalars(saved);
    Checkpointer(model, {.directory = folder.path()}).save({.step = 20});
  });
  with_model({.ranks = 3}, [&](FullyShard& model) {
    Checkpointer checkpoints(model, {.directory = folder.path()});
    CHECK_FALSE(checkpoints.load(checkpoints.latest()->path).sampler);
    CHECK(carried(model.step_scalars()) == carried(saved));
  });
}

// Scale and good steps of a run that goes on from what another has come to.
std::pair<float, std::int32_t> scale_after(const kernels::StepScalars& saved, const kernels::LossScaling& scaling) {
  const TemporaryFolder folder;
  with_model({.rows = 2}, [&](FullyShard& model) {
    model.set_step_scalars(saved);
    Checkpointer(model, {.directory = folder.path()}).save({.step = 1});
  });
  kernels::StepScalars loaded;
  with_model({.rows = 2, .loss_scaling = scaling}, [&](FullyShard& model) {
    Checkpointer(model, {.directory = folder.path()}).load(folder / "step-00000001");
    loaded = model.step_scalars();
  });
  return {loaded.loss_scale, loaded.good_steps};
}

TEST_CASE("a_dynamic_loss_scale_goes_on_and_a_fixed_one_is_the_models_own") {
  const auto counts = [](float scale, std::int32_t good_steps, std::int64_t skipped) {
    kernels::StepScalars scalars;
    scalars.step = 17;
    scalars.skipped_steps = skipped;
    scalars.loss_scale = scale;
    scalars.good_steps = good_steps;
    return scalars;
  };
  using Scale = std::pair<float, std::int32_t>;
  constexpr kernels::LossScaling dynamic = kernels::dynamic_loss_scaling;
  CHECK(scale_after(counts(4096.0f, 11, 4), dynamic) == Scale{4096.0f, 11});
  CHECK(scale_after(counts(4096.0f, 11, 4), {}) == Scale{1.0f, 0});
  CHECK(scale_after(counts(4096.0f, 11, 4), {.initial = 1024.0f}) == Scale{1024.0f, 0});
  // The run before scaled nothing, as with bf16: from 65536 fewer than 16 skipped steps lead nowhere near 1.
  CHECK(scale_after(counts(1.0f, 0, 0), dynamic) == Scale{65536.0f, 0});
  CHECK(scale_after(counts(1.0f, 0, 15), dynamic) == Scale{65536.0f, 0});
  CHECK(scale_after(counts(1.0f, 0, 16), dynamic) == Scale{1.0f, 0});
  CHECK(scale_after(counts(1.0f, 3, 15), dynamic) == Scale{1.0f, 3});
  // Limits are the model's own: they may have been others before.
  const auto limited = [](float smallest, float largest) {
    return kernels::LossScaling{.initial = largest, .dynamic = true, .smallest = smallest, .largest = largest};
  };
  CHECK(scale_after(counts(65536.0f, 11, 4), limited(1.0f, 512.0f)) == Scale{512.0f, 11});
  CHECK(scale_after(counts(4.0f, 11, 4), limited(16.0f, 512.0f)) == Scale{16.0f, 11});
}

TEST_CASE("what_is_saved_in_the_background_is_what_stood_there_when_it_began") {
  const TemporaryFolder folder;
  save({}, folder / "expected", 7);
  for (const int ranks : tests::rank_counts({1, 3})) {
    const fs::path directory = folder / std::to_string(ranks);
    with_model({.ranks = ranks, .checkpointing = Checkpointing::background}, [&](FullyShard& model) {
      Checkpointer checkpoints(model, {.directory = directory});
      fill(model, 1);
      checkpoints.save_async(progress(7));
      CHECK(checkpoints.saving());
      fill(model, 2);
      CHECK_THROWS_AS(model.recompile(), UsageError);
      checkpoints.save_async(progress(8));
      fill(model, 3);
      checkpoints.wait();
      CHECK_FALSE(checkpoints.saving());
      model.recompile();
      checkpoints.load(checkpoints.latest()->path);
      CHECK(differing(model, 2) == 0);
    });
    CHECK(files_in(directory / "step-00000007") == files_in(folder / "expected/step-00000007"));
  }
}

// The states of a run that is given up would else come back with what is thawed.
TEST_CASE("states_that_wait_are_dropped_when_a_checkpoint_is_loaded") {
  const TemporaryFolder folder;
  with_model({.ranks = 2}, [&](FullyShard& model) {
    Checkpointer checkpoints(model, {.directory = folder.path()});
    auto& parameter = const_cast<Parameter&>(*model.unit(1).parameters()[0]);
    const auto moments = [&] { return model.whole(parameter, "m"); };
    const std::vector<float> none(parameter.elements());
    for (const bool loads : {false, true}) {
      fill(model, 1);
      const std::vector<float> before = moments();
      REQUIRE(before != none);
      parameter.set_frozen(true);
      model.recompile();
      if (loads) {
        checkpoints.save(progress(7));
        checkpoints.load(checkpoints.latest()->path);
      }
      CHECK(model.waiting().size() == (loads ? 0 : 1));
      parameter.set_frozen(false);
      model.recompile();
      CHECK(moments() == (loads ? none : before));
    }
  });
}

TEST_CASE("a_step_that_stands_there_stays_and_with_other_contents_it_is_an_error") {
  const TemporaryFolder folder;
  save({.ranks = 2}, folder.path(), 7);
  const auto before = files_in(folder / "step-00000007");
  save({.ranks = 3, .strategy = Strategy::ddp}, folder.path(), 7);
  CHECK(files_in(folder / "step-00000007") == before);
  const auto messages = failures<DataError>({.ranks = 3}, [&](FullyShard& model) {
    Checkpointer checkpoints(model, {.directory = folder.path()});
    fill(model, 2);
    try {
      checkpoints.save(progress(7));
    } catch (const DataError&) {
      checkpoints.save(progress(8));  // training goes on
      throw;
    }
  });
  CHECK(mention(messages, 3, "step-00000007: this step was saved before, with other contents"));
  CHECK(files_in(folder / "step-00000007") == before);
  CHECK(names(folder.path()) == std::set<std::string>{".lock", "step-00000007", "step-00000008"});
}

TEST_CASE("the_newest_stay_and_older_ones_go_once_the_new_one_stands") {
  const TemporaryFolder folder;
  with_model({.ranks = 2}, [&](FullyShard& model) {
    Checkpointer checkpoints(model, {.directory = folder.path(), .keep = 2});
    for (std::uint64_t step = 1; step <= 4; ++step) checkpoints.save({.step = step});
    CHECK(checkpoints.latest()->step == 4);
  });
  CHECK(names(folder.path()) == std::set<std::string>{".lock", "step-00000003", "step-00000004"});
}

TEST_CASE("leftovers_of_dead_jobs_go_and_a_second_job_is_refused") {
  const TemporaryFolder folder;
  fs::create_directories(folder / "step-00000003.tmp");
  std::ofstream(folder / "step-00000003.tmp/model.safetensors") << "half";
  fs::create_directories(folder / "step-00000002");  // without a manifest
  fs::create_directories(folder / "mine.tmp");       // somebody else's
  with_model({.ranks = 2}, [&](FullyShard& model) {
    Checkpointer checkpoints(model, {.directory = folder.path()});
    CHECK_THROWS_WITH_AS(checkpoints.latest(), doctest::Contains("step-00000002/manifest.json: cannot be opened"),
                         DataError);
    const auto second = [&] { Checkpointer(model, {.directory = folder.path()}); };
    CHECK_THROWS_WITH_AS(second(), doctest::Contains("another program is writing"), DataError);
    checkpoints.save({.step = 3});
    CHECK(checkpoints.latest()->step == 3);
  });
  CHECK(names(folder.path()) == std::set<std::string>{".lock", "mine.tmp", "step-00000002", "step-00000003"});
}

TEST_CASE("the_newest_that_cannot_be_used_is_an_error_unless_it_is_to_be_skipped") {
  const TemporaryFolder folder;
  with_model({.ranks = 3, .rows = 2}, [&](FullyShard& model) {
    Checkpointer checkpoints(model, {.directory = folder.path()});
    CHECK_FALSE(checkpoints.latest());
    CHECK_FALSE(checkpoints.latest({.skip_damaged = true}));
    for (std::uint64_t step = 1; step <= 3; ++step) checkpoints.save({.step = step});
    if (model.world().rank() == 0) {
      const fs::path file = folder / "step-00000003/model.safetensors";
      fs::resize_file(file, fs::file_size(file) - 1);
    }
    model.world().barrier("damaged");
    CHECK_THROWS_WITH_AS(checkpoints.latest(), doctest::Contains("it belongs to the newest checkpoint in "), DataError);
    CHECK(checkpoints.latest({.skip_damaged = true})->step == 2);
    CHECK(checkpoints.latest({.skip_damaged = true, .below = 2})->step == 1);
    CHECK_FALSE(checkpoints.latest({.skip_damaged = true, .below = 1}));
    CHECK(checkpoints.latest({.below = 3})->step == 2);
    CHECK_FALSE(checkpoints.latest({.below = 1}));
    CHECK_THROWS_WITH_AS(checkpoints.latest({.below = 4}),
                         doctest::Contains("it belongs to the newest checkpoint below step 4 in "), DataError);
    model.world().barrier("looked");
    if (model.world().rank() == 0) {
      for (const char* name : {"step-00000001", "step-00000002"}) fs::remove(folder / name / "manifest.json");
    }
    model.world().barrier("damaged");
    CHECK_THROWS_WITH_AS(checkpoints.latest({.skip_damaged = true}),
                         doctest::Contains("none of its checkpoints can be used"), DataError);
  });
}

// Also where only the contents tell: the older, sound one would go otherwise, when the next step is saved.
TEST_CASE("what_is_no_sound_checkpoint_where_a_step_is_saved_is_set_aside") {
  const TemporaryFolder folder;
  const fs::path saved = folder / "step-00000007";
  save({.rows = 2}, folder.path(), 7);
  const auto sound = files_in(saved);
  const std::vector<std::function<void()>> damages = {
      [&] { fs::resize_file(saved / "model.safetensors", 3); },
      [&] { std::fstream(saved / "optimizer.safetensors").seekp(5000).put('!'); },
      [&] { fs::remove(saved / "manifest.json"); },
      [&] { fs::remove_all(saved), std::ofstream(saved) << "a note"; },
  };
  for (std::size_t i = 0; i < damages.size(); ++i) {
    damages[i]();
    const std::string aside = "step-00000007.aside" + (i == 0 ? "" : "-" + std::to_string(i + 1));
    save({.ranks = 3, .rows = 2}, folder.path(), 7);
    CHECK(files_in(saved) == sound);
    CHECK(names(folder.path()).contains(aside));
  }
  CHECK(fs::file_size(folder / "step-00000007.aside/model.safetensors") == 3);
  CHECK(fs::file_size(folder / "step-00000007.aside-4") == 6);
}

TEST_CASE("what_cannot_be_read_and_what_is_newer_are_never_removed") {
  const TemporaryFolder folder;
  save({.rows = 2}, folder.path(), 1);
  save({.rows = 2}, folder.path(), 2);
  save({.rows = 2}, folder.path(), 9);
  fs::rename(folder / "step-00000002/manifest.json", folder / "kept.json");
  with_model({.ranks = 2, .rows = 2}, [&](FullyShard& model) {
    Checkpointer checkpoints(model, {.directory = folder.path(), .keep = 1});
    checkpoints.save({.step = 3});
    checkpoints.save({.step = 4});
  });
  CHECK(names(folder.path()) ==
        std::set<std::string>{".lock", "kept.json", "step-00000002", "step-00000004", "step-00000009"});
}

TEST_CASE("buffers_that_differ_between_ranks_are_refused_with_what_to_call") {
  for (const Checkpointing checkpointing : {Checkpointing::blocking, Checkpointing::background}) {
    const TemporaryFolder folder;
    const Job job{.ranks = 3, .checkpointing = checkpointing, .rows = 2};
    const auto save_with_own_mean = [&](FullyShard& model, bool synchronized) {
      fill(model, 1);
      const Buffer& mean = *model.unit(1).buffers().front();
      if (model.world().rank() == 2) model.buffer(mean)[20] = 0.5f;
      if (synchronized) model.synchronize_buffers();
      Checkpointer checkpoints(model, {.directory = folder.path()});
      checkpointing == Checkpointing::background ? checkpoints.save_async({.step = 4}) : checkpoints.save({.step = 4});
      checkpoints.wait();
    };
    CHECK(mention(
        failures<UsageError>(job, [&](FullyShard& model) { save_with_own_mean(model, false); }), 3,
        "buffer units.1.mean has other values on rank 2 than on rank 0, and a checkpoint has one for all ranks: "
        "before saving, call FullyShard::synchronize_buffers()"));
    CHECK(names(folder.path()) == std::set<std::string>{".lock"});
    with_model(job, [&](FullyShard& model) { save_with_own_mean(model, true); });
    CHECK(names(folder.path()).contains("step-00000004"));
  }
}

TEST_CASE("a_lock_that_leads_elsewhere_is_refused_and_what_it_leads_to_stays") {
  const TemporaryFolder folder;
  std::ofstream(folder / "diary") << "dear";
  const auto construct = [&](FullyShard& model) { Checkpointer(model, {.directory = folder / "run"}); };
  fs::create_directory(folder / "run");
  fs::create_symlink(folder / "diary", folder / "run/.lock");
  CHECK(mention(failures<DataError>({.ranks = 2, .rows = 2}, construct), 2,
                "run/.lock: is a symbolic link, which nothing is written through: remove it"));
  fs::remove(folder / "run/.lock");
  fs::create_hard_link(folder / "diary", folder / "run/.lock");
  with_model({.rows = 2}, construct);
  CHECK(files_in(folder.path() / "run").at(".lock") == "dear");
}

TEST_CASE("a_directory_that_was_moved_away_is_made_and_locked_anew") {
  const TemporaryFolder folder;
  with_model({.rows = 2}, [&](FullyShard& model) {
    Checkpointer checkpoints(model, {.directory = folder / "run"});
    checkpoints.save({.step = 1});
    fs::rename(folder / "run", folder / "moved");
    checkpoints.save({.step = 2});
    const auto second = [&](const char* name) { Checkpointer(model, {.directory = folder / name}); };
    CHECK_THROWS_WITH_AS(second("run"), doctest::Contains("another program is writing"), DataError);
    CHECK_NOTHROW(second("moved"));
    fs::rename(folder / "run", folder / "again");
    const Checkpointer other(model, {.directory = folder / "run"});
    CHECK_THROWS_WITH_AS(checkpoints.save({.step = 3}), doctest::Contains("another program is writing"), DataError);
  });
  CHECK(names(folder / "again") == std::set<std::string>{".lock", "step-00000002"});
  CHECK(names(folder / "run") == std::set<std::string>{".lock"});
}

TEST_CASE("large_models_are_split_over_files_with_an_index") {
  const TemporaryFolder folder;
  with_model({.ranks = 3}, [&](FullyShard& model) {
    fill(model, 1);
    Checkpointer(model, {.directory = folder.path(), .split = Bytes(5'000'000)}).save({.step = 1});
  });
  const std::set<std::string> found = names(folder / "step-00000001");
  CHECK(found.contains("model-00001-of-00003.safetensors"));
  CHECK(found.contains("model-00003-of-00003.safetensors"));
  CHECK(found.contains("model.safetensors.index.json"));
  CHECK(found.contains("optimizer.safetensors.index.json"));
  CHECK(found.contains("buffers.safetensors"));
  with_model({.ranks = 2}, [&](FullyShard& model) {
    Checkpointer checkpoints(model, {.directory = folder.path()});
    checkpoints.load(folder / "step-00000001");
    CHECK(differing(model, 1) == 0);
  });
}

TEST_CASE("a_model_that_does_not_fit_is_told_everything_and_left_as_it_was") {
  const TemporaryFolder folder;
  save({.ranks = 2}, folder.path(), 7);
  const auto load = [&](FullyShard& model, LoadOptions options) {
    fill(model, 2);
    Checkpointer(model, {.directory = folder.path()}).load(folder / "step-00000007", options);
  };
  const Job job{.ranks = 3, .rows = 1033, .layers = 4};
  with_model(job, [&](FullyShard& model) {
    try {
      load(model, {});
      FAIL("loaded");
    } catch (const DataError& error) {
      const std::string text = error.what();
      for (const char* part :
           {"step-00000007: does not fit the model", "model tensor \"units.1.weight\" is [1031, 1301]",
            "the model's is [1033, 1301]", "model tensor \"units.3.weight\" [] is missing",
            "optimizer tensor \"m/units.3.bias\" [1] is missing",
            "buffers tensor \"units.3.mean\" [7, 3] is missing"}) {
        INFO(text);
        CHECK(text.find(part) != std::string::npos);
      }
    }
    CHECK(differing(model, 2) == 0);
  });
  const auto messages = failures<DataError>({.ranks = 2, .layers = 2}, [&](FullyShard& model) { load(model, {}); });
  CHECK(mention(messages, 2, "model tensor \"units.2.bias\" is not in the model"));
  with_model(job, [&](FullyShard& model) {
    load(model, {.partial = true});
    std::size_t wrong = 0;
    for_each_share(model, [&](const std::string& tensor, std::size_t first, std::span<float> values) {
      const bool absent =
          tensor.find("units.3") != std::string::npos || tensor.find("units.1.weight") != std::string::npos;
      const Values expected(tensor, absent ? 2 : 1);
      for (std::size_t i = 0; i < values.size(); ++i) wrong += values[i] != expected[first + i];
    });
    CHECK(wrong == 0);
  });
}

TEST_CASE("names_of_tied_parameters_stand_in_the_metadata") {
  const TemporaryFolder folder;
  with_model({.ranks = 2}, [&](FullyShard& model) {
    Checkpointer(model, {.directory = folder.path(), .aliases = {{"head.weight", "units.1.weight"}}}).save({.step = 1});
    const CheckpointerOptions wrong{.directory = folder.path(), .aliases = {{"head", "units.9.weight"}}};
    CHECK_THROWS_WITH_AS(Checkpointer(model, wrong), "alias head: the model has no parameter units.9.weight",
                         UsageError);
  });
  const SafetensorsReader file(folder / "step-00000001/model.safetensors");
  CHECK(file.metadata().at("head.weight") == "units.1.weight");
  CHECK(file.find("head.weight") == nullptr);
}

TEST_CASE("parameters_that_were_tied_and_are_no_more_all_have_the_values_of_the_one_that_was_stored") {
  const TemporaryFolder folder;
  const std::map<std::string, std::string> aliases = {{"units.3.weight", "units.2.weight"},
                                                      {"units.4.weight", "units.2.weight"}};
  with_model({.rows = 2}, [&](FullyShard& model) {
    fill(model, 1);
    Checkpointer(model, {.directory = folder.path(), .aliases = aliases}).save({.step = 1});
  });
  for (const int ranks : tests::rank_counts({1, 3})) {
    with_model({.ranks = ranks, .rows = 2, .layers = 5}, [&](FullyShard& model) {
      fill(model, 2);
      Checkpointer(model, {.directory = folder.path()}).load(folder / "step-00000001", {.partial = true});
      for_each_share(model, [&](const std::string& tensor, std::size_t, std::span<float> values) {
        if (values.empty() || !(aliases.contains(tensor) || tensor == "units.2.weight")) return;
        CHECK(values[0] == Values("units.2.weight", 1)[0]);
      });
    });
  }
}

// Else AdamW would take moments of zero for those of long training, and its first steps were three times too long.
TEST_CASE("without_the_states_of_its_optimizer_a_model_counts_updates_from_where_it_stands") {
  const TemporaryFolder folder;
  kernels::StepScalars saved;
  saved.step = 17;
  saved.skipped_steps = 3;
  saved.decay_power[0] = saved.decay_power[1] = 0.0;
  const auto job = [](bool sgd, std::size_t layers) { return Job{.rows = 2, .layers = layers, .sgd = sgd}; };
  with_model(job(true, 2), [&](FullyShard& model) {
    fill(model, 1);
    model.set_step_scalars(saved);
    Checkpointer(model, {.directory = folder.path()}).save({.step = 20});
  });
  for (const bool sgd : {false, true}) {
    with_model(job(sgd, 3), [&](FullyShard& model) {
      const kernels::StepScalars before = model.step_scalars();
      Checkpointer checkpoints(model, {.directory = folder.path()});
      CHECK(checkpoints.load(folder / "step-00000020", {.partial = true}).step == 20);
      const kernels::StepScalars now = model.step_scalars();
      CHECK((carried(now) == carried(before)) == !sgd);
      CHECK(now.step == (sgd ? 17 : 0));
    });
  }
}

// Whatever readers refuse is refused before training, and not written.
// Names of 110 MB take minutes under a sanitizer, which looks at one rank alone here.
TEST_CASE("a_checkpoint_that_no_reader_would_take_is_refused_when_the_checkpointer_is_made" *
          doctest::skip(tests::sanitized)) {
  const TemporaryFolder folder;
  const auto complaint = [&](std::size_t parameters, std::size_t length, const Shape& shape, Bytes split) {
    std::string text;
    launch({.ranks = 1}, [&](World& world) {
      std::vector<std::unique_ptr<Parameter>> owned;
      std::vector<NamedParameter> named;
      for (std::size_t i = 0; i < parameters; ++i) {
        owned.push_back(std::make_unique<Parameter>(shape, Initial::ones()));
        named.push_back({std::string(length, 'x') + std::to_string(i), owned.back().get()});
      }
      FullyShard model(world, {.checkpointing = Checkpointing::blocking});
      model.add_unit("u", named);
      model.finalize(Sgd{});
      try {
        Checkpointer(model, {.directory = folder.path(), .split = split});
      } catch (const UsageError& error) {
        text = error.what();
      }
    });
    return text;
  };
  CHECK(complaint(110, 1'000'000, {1}, split_limit).find("names 110 tensors, and no reader takes more") !=
        std::string::npos);
  if (!tests::reduced()) {  // long
    CHECK(complaint(110, 1'000'000, {1}, Bytes(100)).find("tensor index: ") == 0);
    // Indices that fit, and a state that does not once the states of all were thawed.
    CHECK(complaint(3327, 30'000, {1}, Bytes(1000)).find("checkpoint: a state of ") == 0);
  }
  CHECK(complaint(1, 1, Shape(65, 1), split_limit).find("has 65 dimensions, and can have 64") != std::string::npos);
  CHECK(complaint(1, 1, Shape(64, 1), split_limit) == "");
  CHECK(names(folder.path()) == std::set<std::string>{".lock"});
}

// A unit whose gradient is 1 everywhere: AdamW's step is the learning rate, whatever the count.
struct Uniform final : Module {
  void visit(ModuleVisitor& visitor) override { visitor("weight", weight); }
  void forward(Window&) {}
  void backward(Window& window) {
    for (float& value : window.gradient(weight)) value = 1.0f;
  }
  Parameter weight{{300}, Initial::ones()};
};

// Runs `body` on a model of the units; step() trains them all.
void with_uniform(std::vector<std::string> names,
                  const std::function<void(FullyShard&, Checkpointer&, const std::function<void()>& step)>& body,
                  const fs::path& directory) {
  launch({.ranks = 2}, [&](World& world) {
    std::vector<std::unique_ptr<Uniform>> units;
    FullyShard model(world, {.checkpointing = Checkpointing::blocking});
    for (const std::string& name : names) model.add(*units.emplace_back(std::make_unique<Uniform>()), name);
    model.finalize(AdamW{.learning_rate = 1e-3f, .weight_decay = 0.0f});
    Checkpointer checkpoints(model, {.directory = directory});
    body(model, checkpoints, [&] {
      for (auto& unit : units) model.forward(*unit);
      for (auto unit = units.rbegin(); unit != units.rend(); ++unit) model.backward(**unit);
      model.update();
    });
  });
}

TEST_CASE("what_a_partial_load_does_not_bring_counts_its_own_updates_also_once_it_was_saved") {
  const TemporaryFolder folder;
  with_uniform(
      {"body"},
      [](FullyShard&, Checkpointer& checkpoints, const std::function<void()>& step) {
        for (int i = 0; i < 400; ++i) step();
        checkpoints.save({.step = 400});
      },
      folder.path());
  const auto moved = [](FullyShard& model, std::size_t unit, const std::function<void()>& step) {
    const Parameter& weight = *model.unit(unit).parameters()[0];
    const float before = model.whole(weight)[299];
    step();
    return before - model.whole(weight)[299];
  };
  std::vector<float> straight;
  with_uniform(
      {"body", "head"},
      [&](FullyShard& model, Checkpointer& checkpoints, const std::function<void()>& step) {
        checkpoints.load(folder / "step-00000400", {.partial = true});
        for (int i = 0; i < 6; ++i) {
          CHECK(moved(model, i % 2, step) == doctest::Approx(1e-3f).epsilon(1e-3));
          if (i == 2) checkpoints.save({.step = 403});
        }
        const std::vector<float> whole = model.whole(*model.unit(1).parameters()[0]);
        if (model.world().rank() == 0) straight = whole;
      },
      folder / "head");
  with_uniform(
      {"body", "head"},
      [&](FullyShard& model, Checkpointer& checkpoints, const std::function<void()>& step) {
        for (int i = 0; i < 5; ++i) step();  // these updates are forgotten with their states
        const CheckpointState state = checkpoints.load(folder / "head/step-00000403");
        CHECK(state.states_updates == std::map<std::string, std::uint64_t>{{"head.weight", 3}});
        for (int i = 0; i < 3; ++i) step();
        CHECK(model.whole(*model.unit(1).parameters()[0]) == straight);
      },
      folder / "head");
}

TEST_CASE("ranks_that_load_or_lay_out_different_checkpoints_are_told_before_anything_is_replaced") {
  const TemporaryFolder folder;
  const Job job{.ranks = 3};
  for (const std::uint64_t step : {1, 2}) save(job, folder.path(), step, step);
  const std::string last = folder / "step-00000002";
  const auto load_other = [&](FullyShard& model) {
    Checkpointer checkpoints(model, {.directory = folder.path()});
    const bool is_other = model.world().rank() == 1;
    fill(model, 5);
    try {
      checkpoints.load(is_other ? folder / "step-00000001" : std::filesystem::path(last));
    } catch (const CommunicationError&) {
      std::size_t changed = 0;
      for_each_share(model, counting_differences(5, changed));
      CHECK(changed == 0);
      throw;
    }
  };
  CHECK(
      mention(failures<CommunicationError>(job, load_other), 3, "the checkpoint of load() must be equal: ranks 0, 2"));
  const auto load_part = [&](FullyShard& model) {
    Checkpointer(model, {.directory = folder.path()}).load(last, {.partial = model.world().rank() == 1});
  };
  CHECK(mention(failures<CommunicationError>(job, load_part), 3,
                "LoadOptions::partial must be equal: ranks 0, 2 said 0; rank 1 said 1"));
  const auto split_otherwise = [&](FullyShard& model) {
    Checkpointer(model, {.directory = folder.path(), .split = Bytes(model.world().rank() == 2 ? 1000 : 1000000)});
  };
  CHECK(
      mention(failures<CommunicationError>(job, split_otherwise), 3,
              "CheckpointerOptions: what files are to have (aliases, metadata, split) must be equal: ranks 0, 1 said"));
}

TEST_CASE("misuse_is_named") {
  const TemporaryFolder folder;
  const auto construct = [&](FullyShard& model) { Checkpointer(model, {.directory = folder.path()}); };
  CHECK(mention(failures<UsageError>({.ranks = 2, .checkpointing = Checkpointing::none}, construct), 2,
                "FullyShardOptions::checkpointing"));
  const auto in_background = [&](FullyShard& model) {
    Checkpointer(model, {.directory = folder.path()}).save_async({.step = 1});
  };
  CHECK(mention(failures<UsageError>({.ranks = 2}, in_background), 2, "checkpointing = background"));
  const auto in_a_step = [&](FullyShard& model) {
    Checkpointer checkpointer(model, {.directory = folder.path()});
    tessera::Window window = model.open(model.unit(0), plan::WindowKind::forward);
    std::string complaint;
    try {
      checkpointer.save({.step = 1});
    } catch (const UsageError& error) {
      complaint = error.what();
    }
    CHECK(complaint.find("save() works between steps only") != std::string::npos);
    window.close();
  };
  with_model({.ranks = 1}, in_a_step);
  std::ofstream(folder / "file") << "no directory";
  const auto in_file = [&](FullyShard& model) { Checkpointer(model, {.directory = folder / "file"}); };
  CHECK(mention(failures<DataError>({.ranks = 3}, in_file), 3, "/file"));
}

}  // namespace checkpointer_test
