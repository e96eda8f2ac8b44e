// Llama's architecture (Touvron et al. 2023): RMS norms, rotary positions, a gated feed-forward, a head of its own; the
// largest groups its key and value heads. Shapes only: no layers here compute it.
#pragma once

#include <array>
#include <cstddef>
#include <string_view>

#include "models/model.hpp"

namespace models {

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
