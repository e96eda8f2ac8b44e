// A model that somebody describes in a JSON file:
//
//   {"units": [{"name": "embedding", "precision": "fp32", "parameters": [{"name": "table", "shape": [50257, 768]},
//                                                    {"name": "scale", "shape": [768], "frozen": true}]}, …],
//    "program": {"micro_batch": ["forward embedding", …, "backward embedding"], "evaluation": ["evaluate embedding",
//    …]}}
#pragma once

#include <filesystem>

#include "models/model.hpp"

namespace models {

// "precision" (fp32, bf16, fp16), "prefetch", "reshard_after_forward", "frozen" and "program" may be left out: what the
// plan has, false, and the chain of all units. Windows are forward, recompute, backward and evaluate; one that goes on
// behind those inside it is "resume forward embedding". Full names of parameters are unit.name.
// Nothing is trusted: every size is bounded, unknown and repeated keys are errors. Throws DataError with the path and
// the place in the file, as in "model.json: units[2].parameters[0].shape[1]: …".
Model read_units(const std::filesystem::path& path);

inline constexpr std::size_t most_file_bytes = std::size_t{16} << 20;
inline constexpr std::size_t most_units = 65536;
inline constexpr std::size_t most_parameters = std::size_t{1} << 20;  // of all units together
inline constexpr std::size_t most_extents = 8;
inline constexpr std::size_t most_extent = std::size_t{1} << 40;
inline constexpr std::size_t most_windows = std::size_t{1} << 20;
inline constexpr std::size_t most_prefetch = 1024;
inline constexpr std::size_t most_name_bytes = 512;

}  // namespace models
