// Training steps of a model on a batch that stays the same, in this process and without files: what is timed is the
// runtime, its layers and its collectives. bench/compare.py trains the same with PyTorch.
#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <vector>

#include "step/products.hpp"
#include "tessera/comm/world.hpp"
#include "tessera/plan/strategy.hpp"

namespace bench {

struct StepOptions {
  tessera::Precision precision = tessera::fp32_precision;
  tessera::Strategy strategy = tessera::Strategy::ddp;
  std::size_t ranks = 1;
  std::size_t threads = 1;  // of each rank
  std::size_t steps = 15;   // that are timed
  std::size_t warm_up = 3;  // steps before them
  std::size_t batch;        // rows, sequences or images of each rank
  std::size_t width;        // of networks on images: channels of the first stage
  std::size_t layers = 0;   // mlp: of width × width; gpt: blocks; 0: the model has as many as it has
  std::size_t side = 0;     // of images, in pixels; 0: the model sees none
  std::size_t heads = 4;
  std::size_t sequence = 128;
  std::optional<std::filesystem::path> weights = std::nullopt;  // the initial ones are written there
  std::optional<std::filesystem::path> trace = std::nullopt;    // of the timed steps
};

inline constexpr float learning_rate = 1e-4f;

struct StepTimes {
  std::vector<double> seconds;    // of each timed step
  std::vector<double> optimizer;  // of them in the optimizer's loops
  std::vector<float> losses;      // of every step, the mean over ranks
};

// ---- of each model, in a source of its name ----

extern const char* const model_name;
StepOptions default_options();
// Called by every rank; the same losses on all. Collective.
StepTimes train(tessera::World& world, const StepOptions& options);
// Returns the products of its linear layers in a step, and its attention; nothing for networks on images.
Products products(const StepOptions& options);

}  // namespace bench
