// Saves and resumes, and says so.
#include "common/run_checkpoints.hpp"

#include <fmt/format.h>

#include <utility>

#include "common/number_text.hpp"
#include "tessera/base/error.hpp"

namespace examples {

RunCheckpoints::RunCheckpoints(tessera::FullyShard& model, const RunOptions& options,
                               std::map<std::string, std::string> aliases, Say say)
    : options_(options.checkpoints), say_(std::move(say)) {
  if (!options_.directory) return;
  checkpointer_.emplace(
      model, tessera::CheckpointerOptions{
                 .directory = *options_.directory, .keep = options_.keep.value_or(0), .aliases = std::move(aliases)});
}

std::optional<ResumedRun> RunCheckpoints::resume() {
  if (!options_.resume) return std::nullopt;
  const auto latest = checkpointer_->latest();
  if (!latest) {
    say_(fmt::format("resume   no checkpoint in {}: this run starts afresh", options_.directory->string()));
    return std::nullopt;
  }
  const tessera::CheckpointState state = checkpointer_->load(latest->path);
  say_(fmt::format("resume   from {}", latest->path.string()));
  return ResumedRun{.step = state.step, .sampler = state.sampler};
}

bool RunCheckpoints::due(std::size_t step, std::size_t last_step) const {
  if (!checkpointer_) return false;
  return step == last_step || (options_.every && step % *options_.every == 0);
}

void RunCheckpoints::save(std::size_t step, const tessera::SamplerState& sampler) {
  const tessera::TrainingProgress progress{.step = step, .sampler = sampler};
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
    say_(fmt::format("warning  a checkpoint was not saved: {}; training goes on", failure_));
  }
}

}  // namespace examples
