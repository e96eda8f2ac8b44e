// A model's full fp32 weights as one safetensors file: a tensor per parameter and buffer, under its full name. Every
// rank reads and writes its own pieces of it, so no rank ever holds the model.
#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "tessera/shard/fully_shard.hpp"

#pragma GCC visibility push(default)

namespace tessera {

// Writes the masters, and rank 0's buffers; with outer steps (FullyShardOptions::outer), where replicas have masters of
// their own, what they had in common last. The file appears under its name when it is whole, and not at all when a rank
// fails: then every rank gets a DataError. `metadata`: what the file says beside its tensors, the same on
// every rank (else a CommunicationError). Collective; synchronises; between steps.
void dump_weights(FullyShard& model, const std::filesystem::path& path,
                  const std::map<std::string, std::string>& metadata = {});

struct LoadWeightsOptions {
  // The model's name of a tensor → the file's. What is not named here has the same name in both.
  std::map<std::string, std::string> names = {};
  // Where the file's metadata has one of these names, it must have this text: for what shapes a model and not its
  // tensors, as the number of attention heads.
  std::map<std::string, std::string> metadata = {};
};

// Replaces the masters by the file's tensors (F32, BF16 or F16), with outer steps those of every replica and what they
// have in common. The optimizers' states stay. A tensor may also be
// named by an alias in the file's metadata, as Python's save_model() writes them for tied weights. Tensors that are
// missing, unknown, of another shape or not floating point, names that the model does not have, and metadata of another
// model, are one DataError
// that names them all, before anything is replaced, as is a CommunicationError where ranks load different files.
// Buffers that the file has are every rank's then, also where they are whole numbers or truth values in it; those that
// it lacks stay. Collective; synchronises; between steps.
void load_weights(FullyShard& model, const std::filesystem::path& path, const LoadWeightsOptions& options = {});

// Reads LoadWeightsOptions::names: a JSON object {"name in the model": "name in the file", …}. Throws DataError.
std::map<std::string, std::string> read_name_map(const std::filesystem::path& path);

}  // namespace tessera

#pragma GCC visibility pop
