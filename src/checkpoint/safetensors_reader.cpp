// Reading safetensors files, range by range.
#include <fmt/format.h>

#include <array>
#include <bit>
#include <unordered_map>
#include <utility>

#include "checkpoint/file.hpp"
#include "checkpoint/safetensors_header.hpp"
#include "tessera/base/error.hpp"
#include "tessera/base/half.hpp"
#include "tessera/checkpoint/safetensors.hpp"

namespace tessera {

static_assert(std::endian::native == std::endian::little, "safetensors files are little-endian, and read as they are");

namespace {

using checkpoint::File;
using checkpoint::length_field;

checkpoint::SafetensorsHeader read_header(const File& file, const std::string& path) {
  const std::uint64_t size = file.size();
  if (size < length_field) throw DataError(fmt::format("{}: is too short to be a safetensors file", path));
  std::uint64_t length = 0;
  file.read(0, std::as_writable_bytes(std::span(&length, 1)));
  if (length > size - length_field || length > safetensors_header_limit.count()) {
    throw DataError(
        fmt::format("{}: is not a safetensors file, or damaged: its header would be {} bytes long, in a file of {}",
                    path, length, size));
  }
  std::string json(length, '\0');
  file.read(length_field, std::as_writable_bytes(std::span(json)));
  checkpoint::SafetensorsHeader header = checkpoint::parse_header(json, size - length_field - length, path);
  for (StoredTensor& tensor : header.tensors) tensor.offset += Bytes(length_field + length);
  return header;
}

// Reads 16-bit elements piece by piece and widens them.
template <typename Half>
void read_halves(const SafetensorsReader& reader, const StoredTensor& tensor, std::size_t first, std::span<float> to) {
  std::array<Half, 8192> piece;
  while (!to.empty()) {
    const std::size_t count = std::min(piece.size(), to.size());
    reader.read(tensor, Bytes(first * sizeof(Half)), std::as_writable_bytes(std::span(piece.data(), count)));
    for (std::size_t i = 0; i < count; ++i) to[i] = static_cast<float>(piece[i]);
    first += count;
    to = to.subspan(count);
  }
}

}  // namespace

class SafetensorsReader::Implementation {
 public:
  explicit Implementation(std::filesystem::path path)
      : path_(std::move(path)), file_(File::open_to_read(path_)), header_(read_header(file_, path_.string())) {
    for (std::size_t i = 0; i < header_.tensors.size(); ++i) places_.emplace(header_.tensors[i].name, i);
  }

  const StoredTensor* find(std::string_view name) const {
    const auto place = places_.find(name);
    return place == places_.end() ? nullptr : &header_.tensors[place->second];
  }

  const std::filesystem::path path_;
  const File file_;
  const checkpoint::SafetensorsHeader header_;

 private:
  std::unordered_map<std::string_view, std::size_t> places_;  // keys are views of header_'s names
};

SafetensorsReader::SafetensorsReader(std::filesystem::path path)
    : implementation_(std::make_unique<Implementation>(std::move(path))) {}
SafetensorsReader::SafetensorsReader(SafetensorsReader&&) noexcept = default;
SafetensorsReader& SafetensorsReader::operator=(SafetensorsReader&&) noexcept = default;
SafetensorsReader::~SafetensorsReader() = default;

const std::filesystem::path& SafetensorsReader::path() const { return implementation_->path_; }
const std::vector<StoredTensor>& SafetensorsReader::tensors() const { return implementation_->header_.tensors; }
const StoredTensor* SafetensorsReader::find(std::string_view name) const { return implementation_->find(name); }
const std::map<std::string, std::string>& SafetensorsReader::metadata() const {
  return implementation_->header_.metadata;
}

void SafetensorsReader::read(const StoredTensor& tensor, Bytes first, std::span<std::byte> to) const {
  if (first > tensor.size || to.size() > (tensor.size - first).count()) {
    throw UsageError(fmt::format("{}: tensor {}: {} bytes from byte {} are outside its {}", path().string(),
                                 checkpoint::shown_name(tensor.name), to.size(), first.count(), tensor.size.count()));
  }
  implementation_->file_.read((tensor.offset + first).count(), to);
}

void SafetensorsReader::read_floats(const StoredTensor& tensor, std::size_t first, std::span<float> to) const {
  if (tensor.dtype == "F32") return read(tensor, Bytes(first * sizeof(float)), std::as_writable_bytes(to));
  if (tensor.dtype == "BF16") return read_halves<bf16>(*this, tensor, first, to);
  if (tensor.dtype == "F16") return read_halves<fp16>(*this, tensor, first, to);
  throw DataError(fmt::format("{}: tensor {}: is {}, expected F32, BF16 or F16", path().string(),
                              checkpoint::shown_name(tensor.name), tensor.dtype));
}

bool is_floating(const StoredTensor& tensor) {
  return tensor.dtype == "F32" || tensor.dtype == "BF16" || tensor.dtype == "F16";
}

}  // namespace tessera
