// GPT-2's architecture (Radford et al. 2019) in the shapes that models/gpt trains, with its names and windows.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "models/gpt/pipeline.hpp"
#include "models/gpt/shape.hpp"
#include "models/model.hpp"
#include "tessera/base/bytes.hpp"
#include "tessera/plan/strategy.hpp"

namespace models {

// Where blocks save their inputs, those of micro-batches of `batch` sequences of this precision's elements.
Model gpt(const GptShape& shape, const tessera::Precision& precision = {}, std::size_t batch = 1);

// One of the presets with its context and vocabulary; null for other names.
const Preset* find_gpt(std::string_view name);
GptShape shape_of(const Preset& preset);

// Returns what a rank's passes over micro-batches of `batch` sequences need, counted by train_gpt's own passes.
tessera::Bytes gpt_activations(const GptShape& shape, const tessera::Precision& precision, std::size_t batch);

// The plans of the stages of a pipeline of it on a mesh, as train_gpt's. An optimizer is made for each.
std::vector<tessera::plan::RankRole> gpt_stages(const GptShape& shape, const GptSchedule& schedule,
                                                const tessera::FullyShardOptions& sharding,
                                                const std::function<std::unique_ptr<tessera::Optimizer>()>& optimizer);

}  // namespace models
