// The shapes of GPT-2 (Radford et al. 2019).
#pragma once

#include <array>
#include <cstddef>
#include <string_view>

namespace examples {

struct Preset {
  std::string_view name;
  std::size_t layers;
  std::size_t dim;
  std::size_t heads;
};

inline constexpr std::array presets = {
    Preset{"gpt2-124m", 12, 768, 12},
    Preset{"gpt2-355m", 24, 1024, 16},
    Preset{"gpt2-774m", 36, 1280, 20},
    Preset{"gpt2-1558m", 48, 1600, 25},
};
inline constexpr std::size_t preset_seq = 1024;
inline constexpr std::size_t preset_vocabulary = 50304;  // GPT-2's 50,257 ids, and more up to a multiple of 128

}  // namespace examples
