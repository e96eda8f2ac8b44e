// A model as a plan sees it: its units, and the order of their windows. Shapes only, no bytes.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/plan/layout.hpp"
#include "tessera/plan/program.hpp"

namespace models {

struct Model {
  std::vector<tessera::plan::UnitSpec> units;
  tessera::plan::Program program;
};

// Elements without padding, of what is trained and of what is frozen; slices count as the tensor that they are cut
// from. Throws UsageError when a shape overflows.
struct ParameterCounts {
  std::size_t trained = 0;
  std::size_t frozen = 0;
  std::size_t all() const { return trained + frozen; }
};
ParameterCounts count_parameters(const std::vector<tessera::plan::UnitSpec>& units);

// Adds the parameter `unit.name`.
void add_parameter(tessera::plan::UnitSpec& unit, const std::string& name, tessera::Shape shape);

// A window of recomputation before the backward window of each unit from `first` to before `end`.
void recompute(tessera::plan::Program& program, std::size_t first, std::size_t end);

// A multilayer perceptron: each layer a unit "layers.N" with a weight [out, in] and a bias [out].

// widths: of the layers' inputs, and of the last one's output.
Model perceptron(const std::vector<std::size_t>& widths);

// Llama's architecture (Touvron et al. 2023): RMS norms, rotary positions, a gated feed-forward, a head of its own; the
// largest groups its key and value heads. Shapes only: no layers here compute it.
struct LlamaShape {
  std::string_view name;
  std::size_t layers;
  std::size_t dim;
  std::size_t key_value_dim;  // dim / heads × key and value heads
  std::size_t hidden;         // of the feed-forward
  std::size_t vocabulary;
};

inline constexpr std::array llamas = {
    LlamaShape{"llama-7b", 32, 4096, 4096, 11008, 32000},
    LlamaShape{"llama-70b", 80, 8192, 1024, 28672, 32000},
};
const LlamaShape* find_llama(std::string_view name);  // null for other names

// Units "embedding", "layers.0" …, "head": a chain, recomputed layer by layer with `activation_checkpointing`.
Model llama(const LlamaShape& shape, bool activation_checkpointing);

}  // namespace models
