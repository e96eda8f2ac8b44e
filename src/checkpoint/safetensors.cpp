// Reading and writing safetensors files, range by range; writing together with other ranks.
#include "tessera/checkpoint/safetensors.hpp"

#include <fmt/format.h>

#include <array>
#include <bit>
#include <optional>
#include <system_error>
#include <unordered_map>
#include <utility>

#include "checkpoint/file.hpp"
#include "checkpoint/safetensors_header.hpp"
#include "tessera/base/error.hpp"
#include "tessera/base/half.hpp"

namespace tessera {

static_assert(std::endian::native == std::endian::little, "safetensors files are little-endian, and read as they are");

namespace {

using checkpoint::File;
using checkpoint::length_field;

checkpoint::SafetensorsHeader header_of(const File& file, const std::string& path) {
  return checkpoint::read_header(file.size(), path,
                                 [&](std::uint64_t place, std::span<std::byte> to) { file.read(place, to); });
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
      : path_(std::move(path)), file_(File::open_to_read(path_)), header_(header_of(file_, path_.string())) {
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
  checkpoint::require_inside(tensor, first, to.size(), path().string());
  implementation_->file_.read((tensor.offset + first).count(), to);
}

void SafetensorsReader::read_floats(const StoredTensor& tensor, std::size_t first, std::span<float> to) const {
  // An offset so far beyond the tensor's elements cannot be counted in bytes.
  if (first > tensor.size.count()) {
    throw UsageError(fmt::format("{}: tensor {}: element {} is outside its {} bytes", path().string(),
                                 checkpoint::shown_name(tensor.name), first, tensor.size.count()));
  }
  if (tensor.dtype == "F32") return read(tensor, Bytes(first * sizeof(float)), std::as_writable_bytes(to));
  if (tensor.dtype == "BF16") return read_halves<bf16>(*this, tensor, first, to);
  if (tensor.dtype == "F16") return read_halves<fp16>(*this, tensor, first, to);
  throw DataError(fmt::format("{}: tensor {}: is {}, expected F32, BF16 or F16", path().string(),
                              checkpoint::shown_name(tensor.name), tensor.dtype));
}

bool is_floating(const StoredTensor& tensor) {
  return tensor.dtype == "F32" || tensor.dtype == "BF16" || tensor.dtype == "F16";
}

// ---- writing ----

namespace {

// One tensor after the other.
std::vector<StoredTensor> lay_out(std::vector<TensorSpec> specs) {
  std::vector<StoredTensor> result;
  Bytes end;
  for (TensorSpec& spec : specs) {
    const Bytes size = element_count(spec.shape) * size_of(spec.dtype);
    result.push_back({.name = std::move(spec.name),
                      .dtype = std::string(checkpoint::stored_name(spec.dtype)),
                      .shape = std::move(spec.shape),
                      .offset = end,
                      .size = size});
    end += size;
  }
  return result;
}

std::filesystem::path with_suffix(std::filesystem::path path, std::string_view suffix) { return path += suffix; }

}  // namespace

class SafetensorsWriter::Implementation {
 public:
  Implementation(std::filesystem::path path, std::vector<TensorSpec> specs,
                 const std::map<std::string, std::string>& metadata)
      : path_(std::move(path)), partial_path_(with_suffix(path_, ".partial")), tensors_(lay_out(std::move(specs))) {
    header_ = checkpoint::compose_header(tensors_, metadata);
    data_ = Bytes(length_field + header_.size());
    size_ = tensors_.empty() ? data_ : data_ + tensors_.back().offset + tensors_.back().size;
  }

  ~Implementation() {
    if (!created_) return;
    std::error_code ignored;  // a destructor has nobody to tell
    std::filesystem::remove(partial_path_, ignored);
  }

  void create() {
    std::error_code ignored;
    if (path_.filename().empty() || std::filesystem::is_directory(path_, ignored)) {
      throw DataError(fmt::format("{}: is a directory, not a file to write", path_.string()));
    }
    file_ = File::create_locked(partial_path_);
    created_ = true;
    const std::uint64_t length = header_.size();
    file_->resize(size_.count());
    file_->write(0, std::as_bytes(std::span(&length, 1)));
    file_->write(length_field, std::as_bytes(std::span(header_)));
  }

  void open() { file_ = File::open_to_write(partial_path_); }

  void write(std::size_t tensor, Bytes first, std::span<const std::byte> from) {
    const StoredTensor& target = tensors_.at(tensor);
    checkpoint::require_inside(target, first, from.size(), path_.string());
    file().write((data_ + target.offset + first).count(), from);
  }

  void flush() { file().flush(); }

  void finish() {
    if (!created_)
      throw UsageError(fmt::format("{}: only the writer that created the file finishes it", path_.string()));
    file().flush();
    checkpoint::rename_durably(partial_path_, path_);
    created_ = false;
    file_.reset();
  }

  const std::filesystem::path path_;
  const std::filesystem::path partial_path_;
  Bytes size() const { return size_; }

 private:
  File& file() {
    if (!file_) throw UsageError(fmt::format("{}: is not open: call create() or open() first", path_.string()));
    return *file_;
  }

  std::vector<StoredTensor> tensors_;  // offsets are from the beginning of the data
  std::string header_;
  Bytes data_;  // where the data begins
  Bytes size_;  // of the file
  std::optional<File> file_;
  bool created_ = false;  // by this writer, and not finished
};

SafetensorsWriter::SafetensorsWriter(std::filesystem::path path, std::vector<TensorSpec> tensors,
                                     const std::map<std::string, std::string>& metadata) {
  implementation_ = std::make_unique<Implementation>(std::move(path), std::move(tensors), metadata);
}
SafetensorsWriter::~SafetensorsWriter() = default;

void SafetensorsWriter::create() { implementation_->create(); }
void SafetensorsWriter::open() { implementation_->open(); }
void SafetensorsWriter::write(std::size_t tensor, Bytes first, std::span<const std::byte> from) {
  implementation_->write(tensor, first, from);
}
void SafetensorsWriter::flush() { implementation_->flush(); }
void SafetensorsWriter::finish() { implementation_->finish(); }
const std::filesystem::path& SafetensorsWriter::path() const { return implementation_->path_; }
const std::filesystem::path& SafetensorsWriter::partial_path() const { return implementation_->partial_path_; }
Bytes SafetensorsWriter::file_size() const { return implementation_->size(); }

}  // namespace tessera
