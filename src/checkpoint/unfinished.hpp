// The name of a checkpoint while it is written, or removed: "step-00000100.tmp".
#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>

#include "tessera/checkpoint/checkpoints.hpp"

namespace tessera::checkpoint {

inline constexpr std::string_view unfinished_suffix = ".tmp";

inline std::filesystem::path unfinished_folder(const std::filesystem::path& directory, std::uint64_t step) {
  return (directory / checkpoint_name(step)) += unfinished_suffix;
}

}  // namespace tessera::checkpoint
