// Makes small checkpoints by the writers of files alone, to read, to list and to damage.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "tessera/base/bytes.hpp"
#include "tessera/base/half.hpp"
#include "tessera/checkpoint/checkpoint_reader.hpp"
#include "tessera/checkpoint/safetensors.hpp"
#include "tessera/checkpoint/state.hpp"
#include "tessera/checkpoint/tensor_index.hpp"

struct SampleCheckpoint {
  std::uint64_t step = 100;
  std::vector<tessera::TensorSpec> model = {};
  std::vector<tessera::TensorSpec> optimizer = {};  // no file where there are none
  std::vector<tessera::TensorSpec> buffers = {};
  std::map<std::string, std::string> metadata = {};  // of the model
  tessera::Bytes split_limit = tessera::split_limit;
  tessera::CheckpointState state = {};  // but for its step
  std::uint64_t seed = 0;
};

// A model with tensors of odd sizes, of nothing, within one block and over several; AdamW's states; a buffer; an alias.
SampleCheckpoint sample_checkpoint();

// Element i of a tensor, in any checkpoint of that seed: from -1 to 1.
float sample_value(const std::string& tensor, std::uint64_t seed, std::size_t i);

// Makes the folder DIR/step-… and returns its path.
std::filesystem::path write_checkpoint(const std::filesystem::path& folder, const SampleCheckpoint& sample);

// Gives the checkpoint a manifest of the files that it has now.
void seal_checkpoint(const std::filesystem::path& checkpoint, std::uint64_t step);

// Changes one bit of a file.
void flip_bit(const std::filesystem::path& file, std::uint64_t byte);
