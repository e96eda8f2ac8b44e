// Saves and resumed runs, and what is said of them.
#include "trainer/src/run_checkpoints.hpp"

#include <fmt/format.h>

#include <utility>

#include "tessera/base/error.hpp"
#include "tessera/checkpoint/checkpoints.hpp"
#include "trainer/src/checkpoint_options.hpp"

namespace tessera::trainer {

namespace {

const std::string granules_setting = "--granules";

// The names that checkpoints have for settings begin with dashes or not: with the trainer that saved them.
std::string option_of(const std::string& setting) { return setting.starts_with("--") ? setting : "--" + setting; }

}  // namespace

RunCheckpoints::RunCheckpoints(tessera::FullyShard& model, const RunOptions& options, RunIdentity identity, Say say)
    : world_(model.world()),
      options_(options.checkpoints),
      say_(std::move(say)),
      settings_(std::move(identity.settings)) {
  if (!options_.directory) return;
  if (!options.data_fingerprint.empty()) settings_["--data of the fingerprint"] = options.data_fingerprint;
  checkpointer_.emplace(model, tessera::CheckpointerOptions{.directory = *options_.directory,
                                                            .keep = options_.keep.value_or(0),
                                                            .aliases = std::move(identity.aliases),
                                                            .metadata = std::move(identity.metadata)});
}

std::optional<ResumedRun> RunCheckpoints::resume() {
  if (!options_.resume) return std::nullopt;
  tessera::LatestOptions asked{.skip_damaged = options_.skip_damaged};
  while (const auto latest = find(asked)) {
    try {
      return resume_from(*latest);
    } catch (const tessera::DataError& error) {
      if (!options_.skip_damaged) throw;
      if (world_.rank() == 0) world_.warn(fmt::format("{}: is skipped: {}", latest->path.string(), error.what()));
      asked.below = latest->step;
    }
  }
  if (asked.below != tessera::LatestOptions{}.below) {
    throw tessera::DataError(
        fmt::format("{}: none of its checkpoints can be used; to begin anew, choose another directory",
                    options_.directory->string()));
  }
  say_(fmt::format("resume   no checkpoint in {}: this run starts afresh", options_.directory->string()));
  return std::nullopt;
}

std::optional<tessera::FoundCheckpoint> RunCheckpoints::find(const tessera::LatestOptions& asked) {
  try {
    return checkpointer_->latest(asked);
  } catch (const tessera::DataError& error) {
    if (options_.skip_damaged) throw;
    throw tessera::DataError(fmt::format("{}; --resume=skip-damaged does so by itself", error.what()));
  }
}

ResumedRun RunCheckpoints::resume_from(const tessera::FoundCheckpoint& found) {
  const tessera::CheckpointState state = checkpointer_->load(found.path);
  require_same_run(found, state);
  say_(fmt::format("resume   from {}", found.path.string()));
  say_of_granules(state);
  return {.step = state.step, .sampler = state.sampler};
}

void RunCheckpoints::require_same_run(const tessera::FoundCheckpoint& found,
                                      const tessera::CheckpointState& state) const {
  if (state.step > longest_run) {
    throw tessera::DataError(
        fmt::format("{}: is of step {}, and a run has at most {}", found.path.string(), state.step, longest_run));
  }
  for (const auto& [name, mine] : settings_) {
    const auto theirs = state.values.find(name);
    if (theirs == state.values.end() || theirs->second == mine) continue;
    throw tessera::DataError(fmt::format("{}: was saved with {} {}, and this run has {} {}: give the same",
                                         found.path.string(), option_of(name), theirs->second, option_of(name), mine));
  }
}

// Whoever takes granules up or drops them goes on from the same weights, but in another order of sums from there on.
void RunCheckpoints::say_of_granules(const tessera::CheckpointState& state) const {
  const auto theirs = state.values.find(granules_setting);
  const bool had = theirs != state.values.end();
  if (had == settings_.contains(granules_setting)) return;
  say_(
      had ? fmt::format("resume   it was saved with --granules {}, and this run has none: its bits depend on the ranks",
                        theirs->second)
          : fmt::format("resume   it was saved without --granules: only from here on any number of ranks has the same "
                        "bits"));
}

bool RunCheckpoints::due(std::size_t step, std::size_t last_step) const {
  if (!checkpointer_) return false;
  return step == last_step || (options_.every && step % *options_.every == 0);
}

void RunCheckpoints::save(std::size_t step, const tessera::SamplerState& sampler) {
  const tessera::TrainingProgress progress{.step = step, .sampler = sampler, .values = settings_};
  // Waited for apart from the save that follows: its failure is no reason to leave this one out.
  attempt([&] { checkpointer_->wait(); });
  attempt([&] {
    if (options_.in_background) return checkpointer_->save_async(progress);
    checkpointer_->save(progress);
    say_(fmt::format("saved    {}", (*options_.directory / tessera::checkpoint_name(step)).string()));
  });
}

void RunCheckpoints::finish() {
  if (!checkpointer_) return;
  if (checkpointer_->saving()) {
    attempt([&] {
      checkpointer_->wait();
      say_(fmt::format("saved    {}", checkpointer_->latest()->path.string()));
    });
  }
  if (!failure_.empty()) throw tessera::DataError("the last checkpoint was not saved: " + failure_);
}

void RunCheckpoints::attempt(const std::function<void()>& work) {
  try {
    work();
    failure_.clear();
  } catch (const tessera::DataError& error) {
    failure_ = error.what();
    if (world_.rank() == 0) {
      world_.warn(fmt::format("a checkpoint was not saved: {}; training goes on", failure_));
    }
  }
}

}  // namespace tessera::trainer
