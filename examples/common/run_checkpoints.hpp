// The checkpoints of one run: where it starts from, when it saves, and what happens when a save fails.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "common/run_options.hpp"
#include "tessera/checkpoint/checkpointer.hpp"
#include "tessera/data/sampler.hpp"
#include "tessera/shard/fully_shard.hpp"

namespace examples {

// Where a run goes on.
struct ResumedRun {
  std::size_t step;  // done
  std::optional<tessera::SamplerState> sampler;
};

// All functions are collective. Without --checkpoint-dir they do nothing.
class RunCheckpoints {
 public:
  using Say = std::function<void(const std::string&)>;  // prints a line, on the rank that prints

  // The model is finalized. Options must stay.
  RunCheckpoints(tessera::FullyShard& model, const RunOptions& options, std::map<std::string, std::string> aliases,
                 Say say);

  // Loads what --resume finds.
  std::optional<ResumedRun> resume();

  bool due(std::size_t step, std::size_t last_step) const;
  // A save that fails is told, and training goes on: what was saved before is whole.
  void save(std::size_t step, const tessera::SamplerState& sampler);

  // Until everything is saved. Throws DataError when the last save failed: then the run's end is on no device.
  void finish();

 private:
  void attempt(const std::function<void()>& work);

  const CheckpointOptions& options_;
  Say say_;
  std::optional<tessera::Checkpointer> checkpointer_;
  std::string failure_;  // of the last save; empty: none
};

}  // namespace examples
