// The save that tests break off, fail and record: a small model, several files, and an older checkpoint that goes.
#pragma once

#include <filesystem>

#include "checkpoint_model.hpp"

namespace checkpoint_model {

inline Job small_job(int ranks) { return {.ranks = ranks, .rows = 2}; }

// Saves values that tell the step, and keeps one checkpoint.
inline void small_save(const std::filesystem::path& directory, std::uint64_t step, int ranks) {
  with_model(small_job(ranks), [&](FullyShard& model) {
    fill(model, step);
    Checkpointer(model, {.directory = directory, .keep = 1, .split = Bytes(12'000)}).save({.step = step});
  });
}

// Whether `latest` is there and has every value of its step. Returns the step; 0: it is not.
inline std::uint64_t whole_latest(const std::filesystem::path& directory) {
  std::uint64_t step = 0;
  with_model(small_job(1), [&](FullyShard& model) {
    Checkpointer checkpoints(model, {.directory = directory});
    const auto latest = checkpoints.latest();
    if (!latest) return;
    checkpoints.load(latest->path);
    if (differing(model, latest->step) == 0) step = latest->step;
  });
  return step;
}

}  // namespace checkpoint_model
