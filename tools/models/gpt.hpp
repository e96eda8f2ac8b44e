// GPT-2's architecture (Radford et al. 2019) in the shapes that examples/train_gpt trains, with its names and windows.
#pragma once

#include <string_view>

#include "models/model.hpp"
#include "tessera/base/bytes.hpp"
#include "tessera/plan/strategy.hpp"
#include "train_gpt/shape.hpp"

namespace models {

Model gpt(const examples::GptShape& shape);

// One of the presets with its context and vocabulary; null for other names.
const examples::Preset* find_gpt(std::string_view name);
examples::GptShape shape_of(const examples::Preset& preset);

// Returns what a rank's passes over micro-batches of `batch` sequences need, counted by train_gpt's own passes.
tessera::Bytes gpt_activations(const examples::GptShape& shape, const tessera::Precision& precision, std::size_t batch);

}  // namespace models
