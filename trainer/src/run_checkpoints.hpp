// The checkpoints of one run: where it starts from, when it saves, and what happens when a save fails.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "tessera/checkpoint/checkpointer.hpp"
#include "tessera/comm/world.hpp"
#include "tessera/data/sampler.hpp"
#include "tessera/shard/fully_shard.hpp"
#include "tessera/trainer/run_options.hpp"

namespace tessera::trainer {

// Where a run goes on.
struct ResumedRun {
  std::size_t step;  // done
  std::optional<tessera::SamplerState> sampler;
};

struct RunIdentity {
  std::map<std::string, std::string> aliases = {};  // CheckpointerOptions::aliases
  std::map<std::string, std::string> settings =
      {};  // option → value: what the tensors do not tell, and must be the same
  std::map<std::string, std::string> metadata = {};  // CheckpointerOptions::metadata
};

// All functions are collective. Without --checkpoint-dir they do nothing.
class RunCheckpoints {
 public:
  using Say = std::function<void(const std::string&)>;  // prints a line, on the rank that prints

  // The model is finalized. Options must stay.
  RunCheckpoints(tessera::FullyShard& model, const RunOptions& options, RunIdentity identity, Say say);

  // Loads what --resume finds. What is there and cannot be used is a DataError, or with --resume=skip-damaged a
  // warning, and an older one is loaded.
  std::optional<ResumedRun> resume();

  bool due(std::size_t step, std::size_t last_step) const;
  // A save that fails is a warning, also under --quiet, and training goes on: what was saved before is whole.
  void save(std::size_t step, const tessera::SamplerState& sampler);

  // Until everything is saved. Throws DataError when the last save failed: then the run's end is on no device.
  void finish();

 private:
  std::optional<tessera::FoundCheckpoint> find(const tessera::LatestOptions& asked);
  ResumedRun resume_from(const tessera::FoundCheckpoint& found);
  void require_same_run(const tessera::FoundCheckpoint& found, const tessera::CheckpointState& state) const;
  void say_of_granules(const tessera::CheckpointState& state) const;
  void attempt(const std::function<void()>& work);

  tessera::World& world_;
  const CheckpointOptions& options_;
  Say say_;
  std::map<std::string, std::string> settings_;
  std::optional<tessera::Checkpointer> checkpointer_;
  std::string failure_;  // of the last save; empty: none
};

}  // namespace tessera::trainer
