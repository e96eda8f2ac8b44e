// Blocks are read whole, so that each is read and checked once for all the tensors in it.
#include "checkpoint_values.hpp"

#include <algorithm>
#include <cstring>

#include "tessera/base/half.hpp"

namespace tools {

using tessera::Bytes;
using tessera::checkpoint_block;

namespace {

template <typename Element>
void widen_each(std::span<const std::byte> bytes, std::span<float> to) {
  for (std::size_t i = 0; i < to.size(); ++i) {
    Element element;
    std::memcpy(&element, bytes.data() + i * sizeof(Element), sizeof(Element));
    to[i] = static_cast<float>(element);
  }
}

}  // namespace

CheckpointValues::CheckpointValues(const tessera::CheckpointReader& reader)
    : reader_(reader), bytes_(checkpoint_block.count()) {}

std::span<const std::byte> CheckpointValues::block(std::size_t file, std::uint64_t block) {
  const Bytes size = std::min(checkpoint_block, reader_.manifest().files.at(file).size - block * checkpoint_block);
  const std::span<std::byte> whole = std::span(bytes_).first(size.count());
  if (held_ == std::pair(file, block)) return whole;
  held_.reset();
  const tessera::BlockPart part{Bytes(0), whole};
  reader_.read_block(file, block, std::span(&part, 1), {});
  held_ = {file, block};
  return whole;
}

void CheckpointValues::read(const tessera::CheckpointTensor& tensor, Bytes first, std::span<std::byte> to) {
  Bytes place = tensor.offset + first;
  while (!to.empty()) {
    const std::size_t within = place.count() % checkpoint_block.count();
    const std::span<const std::byte> from =
        block(tensor.file, place.count() / checkpoint_block.count()).subspan(within);
    const std::size_t count = std::min(from.size(), to.size());
    std::memcpy(to.data(), from.data(), count);
    place += Bytes(count);
    to = to.subspan(count);
  }
}

std::size_t element_bytes(const tessera::StoredTensor& tensor) {
  return tensor.size.count() / tessera::element_count(tensor.shape);
}

void widen(std::string_view dtype, std::span<const std::byte> bytes, std::span<float> to) {
  if (dtype == "F32") std::memcpy(to.data(), bytes.data(), bytes.size());
  if (dtype == "BF16") widen_each<tessera::bf16>(bytes, to);
  if (dtype == "F16") widen_each<tessera::fp16>(bytes, to);
}

}  // namespace tools
