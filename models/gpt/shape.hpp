// The shape of a GPT is everything about it but its weights.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace models {

struct GptShape {
  std::size_t layers;
  std::size_t dim;
  std::size_t heads;
  std::size_t seq;
  std::size_t vocabulary;
  float dropout = 0.0f;
  std::uint64_t dropout_seed = 0;
  bool activation_checkpointing = false;
  bool goes_back_in_two = false;  // each micro-batch of a part, as zb-h1 has it
  // With checkpointing, blocks leave their input to their backward windows in memory that the plan moves
  // (Offload::activations), and activations hold two of them.
  bool blocks_save_inputs = false;
  std::vector<std::string> fp32_units = {};  // shell patterns over unit_names()
  // Ranks along Axis::tensor have slices: how many there are, which one this is, and sequences of the largest pass.
  std::size_t slices = 1;
  std::size_t slice = 0;
  std::size_t batch = 1;
  // Ranks along Axis::context have equal parts of each sequence: how many there are, and which one this is.
  std::size_t contexts = 1;
  std::size_t context = 0;

  std::size_t positions() const { return seq / contexts; }  // of a sequence, on each of these ranks
};

inline constexpr const char* embedding_name = "embedding";
inline constexpr const char* final_name = "final";
inline constexpr const char* spread_name = "spread";  // without parameters, where there are slices
inline constexpr const char* loss_name = "loss";
std::string block_name(std::size_t index);  // "blocks.0"

// In the order of their forward windows.
std::vector<std::string> unit_names(const GptShape& shape);

bool stays_in_fp32(const GptShape& shape, std::string_view unit);

// The shapes of GPT-2 (Radford et al. 2019).
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

}  // namespace models
