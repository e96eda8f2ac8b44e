// Inflates a whole file in memory: a data set of this kind is some megabytes.
#include "train_cnn_torch/images.hpp"

#include <ATen/Functions.h>
#include <fmt/format.h>
#include <isa-l/igzip_lib.h>

#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <vector>

#include "tessera/base/error.hpp"

namespace train_cnn {

namespace {

using Octets = std::vector<std::uint8_t>;

Octets read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    throw tessera::DataError(fmt::format(
        "{}: cannot be read; Debian's package dataset-fashion-mnist has such files, --data names their folder",
        path.string()));
  }
  return {std::istreambuf_iterator<char>(file), {}};
}

Octets inflate(Octets compressed, const std::filesystem::path& path) {
  inflate_state state;
  isal_inflate_init(&state);
  state.crc_flag = ISAL_GZIP;
  state.next_in = compressed.data();
  state.avail_in = static_cast<std::uint32_t>(compressed.size());
  Octets content;
  std::vector<std::uint8_t> part(1 << 20);
  while (state.block_state != ISAL_BLOCK_FINISH) {
    state.next_out = part.data();
    state.avail_out = static_cast<std::uint32_t>(part.size());
    const int failed = isal_inflate(&state);
    const std::size_t inflated = part.size() - state.avail_out;
    if (failed != ISAL_DECOMP_OK || (inflated == 0 && state.avail_in == 0 && state.block_state != ISAL_BLOCK_FINISH)) {
      throw tessera::DataError(fmt::format("{}: is damaged, or no file of gzip's", path.string()));
    }
    content.insert(content.end(), part.begin(), part.begin() + static_cast<std::ptrdiff_t>(inflated));
  }
  return content;
}

std::int64_t big_endian(const std::uint8_t* at) {
  return std::int64_t{at[0]} << 24 | std::int64_t{at[1]} << 16 | std::int64_t{at[2]} << 8 | std::int64_t{at[3]};
}

// Sizes of a damaged file may have a product beyond any number's range.
bool have_product(const std::vector<std::int64_t>& sizes, std::size_t expected) {
  std::size_t product = 1;
  for (const std::int64_t size : sizes) {
    product *= static_cast<std::size_t>(size);
    if (product > expected) return false;
  }
  return product == expected;
}

at::Tensor read_tensor(const std::filesystem::path& path, std::size_t dimensions) {
  constexpr std::uint8_t type_of_bytes = 8;
  const Octets content = inflate(read_file(path), path);
  const std::size_t header = 4 + 4 * dimensions;
  std::vector<std::int64_t> sizes;
  if (content.size() >= header && content[2] == type_of_bytes && content[3] == dimensions) {
    for (std::size_t i = 0; i < dimensions; ++i) sizes.push_back(big_endian(&content[4 + 4 * i]));
  }
  if (sizes.empty() || !have_product(sizes, content.size() - header)) {
    throw tessera::DataError(
        fmt::format("{}: is not {} dimensions of bytes in the format of MNIST", path.string(), dimensions));
  }
  at::Tensor tensor = at::empty(sizes, at::kByte);
  std::memcpy(tensor.data_ptr(), content.data() + header, content.size() - header);
  return tensor;
}

}  // namespace

LabelledImages read_images(const std::filesystem::path& directory, const char* set) {
  const std::filesystem::path images = directory / fmt::format("{}-images-idx3-ubyte.gz", set);
  const std::filesystem::path labels = directory / fmt::format("{}-labels-idx1-ubyte.gz", set);
  LabelledImages read{read_tensor(images, 3), read_tensor(labels, 1)};
  if (read.images.size(0) != read.labels.size(0)) {
    throw tessera::DataError(fmt::format("{}: has {} images, and {} has {} labels", images.string(),
                                         read.images.size(0), labels.string(), read.labels.size(0)));
  }
  return read;
}

}  // namespace train_cnn
