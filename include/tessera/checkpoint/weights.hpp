// A model's full fp32 weights as one safetensors file: a tensor per parameter, under its full name. Every rank reads
// and writes its own pieces of it, so no rank ever holds the model.
#pragma once

#include <filesystem>

#include "tessera/shard/fully_shard.hpp"

namespace tessera {

// Writes the masters. The file appears under its name when it is whole, and not at all when a rank fails: then every
// rank gets a DataError. Collective; synchronises; between steps.
void dump_weights(FullyShard& model, const std::filesystem::path& path);

// Replaces the masters by the file's tensors (F32, BF16 or F16). The optimizer's states stay. Tensors that are missing,
// unknown, of another shape or not floating point are one DataError that names them all, before anything is replaced.
// Collective; synchronises; between steps.
void load_weights(FullyShard& model, const std::filesystem::path& path);

}  // namespace tessera
