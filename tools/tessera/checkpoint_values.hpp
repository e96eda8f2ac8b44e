// A checkpoint's tensors element by element, with one block of its files in memory at a time. Who reads tensors in
// their order reads each block once, however small they are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/checkpoint/checkpoint_reader.hpp"

namespace tools {

class CheckpointValues {
 public:
  explicit CheckpointValues(const tessera::CheckpointReader& reader);

  // Bytes [first, first + to.size()) of the tensor, checked.
  void read(const tessera::CheckpointTensor& tensor, tessera::Bytes first, std::span<std::byte> to);

 private:
  std::span<const std::byte> block(std::size_t file, std::uint64_t block);

  const tessera::CheckpointReader& reader_;
  std::vector<std::byte> bytes_;
  std::optional<std::pair<std::size_t, std::uint64_t>> held_;  // file, block
};

// Bytes of an element of a tensor, which has at least one.
std::size_t element_bytes(const tessera::StoredTensor& tensor);

// Widens elements of dtype F32, BF16 or F16 exactly. `bytes` and `to` have as many elements.
void widen(std::string_view dtype, std::span<const std::byte> bytes, std::span<float> to);

}  // namespace tools
