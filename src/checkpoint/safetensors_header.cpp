// The JSON header of a safetensors file. Parsed event by event: nothing is built that the format does not have, so
// neither nesting nor repeated keys can hide anything.
#include "checkpoint/safetensors_header.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <unordered_set>
#include <utility>

#include "checkpoint/json_form.hpp"
#include "tessera/base/error.hpp"

namespace tessera::checkpoint {

namespace {

constexpr std::size_t most_dimensions = 64;

struct NamedSize {
  std::string_view name;
  std::size_t bytes;
};
constexpr std::array<NamedSize, 15> dtypes = {{{"BOOL", 1},
                                               {"U8", 1},
                                               {"I8", 1},
                                               {"F8_E5M2", 1},
                                               {"F8_E4M3", 1},
                                               {"I16", 2},
                                               {"U16", 2},
                                               {"F16", 2},
                                               {"BF16", 2},
                                               {"I32", 4},
                                               {"U32", 4},
                                               {"F32", 4},
                                               {"F64", 8},
                                               {"I64", 8},
                                               {"U64", 8}}};

// Receives the parser's events. Every function returns false, with a reason, for what the format does not have here.
class HeaderEvents final : public JsonEvents {
 public:
  SafetensorsHeader take_header() { return std::move(header_); }
  const std::string& reason() const { return reason_; }

  bool other(JsonEvents::Other, std::string_view what) final { return unexpected(what); }

  bool whole(std::uint64_t value) final {
    if (place_ == Place::shape) {
      if (tensor_.shape.size() == most_dimensions) return refuse(fmt::format("{}: has too many dimensions", subject()));
      tensor_.shape.push_back(value);
      return true;
    }
    if (place_ == Place::offsets) {
      if (offset_count_ == 2) return refuse(fmt::format("{}: data_offsets must be two numbers", subject()));
      offsets_[offset_count_++] = value;
      return true;
    }
    return unexpected("a number");
  }

  bool text(std::string& value) final {
    if (place_ == Place::metadata) {
      header_.metadata[metadata_name_] = value;
      return true;
    }
    if (place_ == Place::tensor && key_ == "dtype") {
      tensor_.dtype = value;
      return true;
    }
    return unexpected("a text");
  }

  bool begin_object() final {
    if (place_ == Place::outside) return enter(Place::top);
    if (place_ == Place::top) return enter(name_ == metadata_key ? Place::metadata : Place::tensor);
    return unexpected("an object");
  }

  bool key(std::string& value) final {
    switch (place_) {
      case Place::top: return begin_entry(value);
      case Place::tensor: return begin_field(value);
      case Place::metadata:
        metadata_name_ = value;
        return !header_.metadata.contains(value) ||
               refuse(fmt::format("{}: {} is given twice", subject(), shown_name(value)));
      default: return unexpected("a key");
    }
  }

  bool end_object() final {
    if (place_ == Place::tensor && !end_tensor()) return false;
    place_ = place_ == Place::top ? Place::outside : Place::top;
    return true;
  }

  bool begin_list() final {
    if (place_ == Place::tensor && key_ == "shape") return enter(Place::shape);
    if (place_ == Place::tensor && key_ == "data_offsets") return enter(Place::offsets);
    return unexpected("a list");
  }

  bool end_list() final { return enter(Place::tensor); }

  void not_json(std::size_t position) final {
    refuse(fmt::format("the header is not JSON: wrong at its byte {}", position));
  }

 private:
  enum class Place { outside, top, tensor, metadata, shape, offsets };

  bool enter(Place place) {
    place_ = place;
    return true;
  }

  bool refuse(std::string reason) {
    reason_ = std::move(reason);
    return false;
  }

  std::string subject() const {
    if (place_ == Place::outside) return "the header";
    return name_ == metadata_key ? std::string(metadata_key) : fmt::format("tensor {}", shown_name(name_));
  }

  bool unexpected(std::string_view what) {
    const std::string_view expected = place_ == Place::metadata                            ? "a text"
                                      : place_ == Place::shape || place_ == Place::offsets ? "whole numbers"
                                      : place_ == Place::tensor ? "dtype, shape and data_offsets of their types"
                                                                : "an object";
    return refuse(fmt::format("{}: expected {}, found {}", subject(), expected, what));
  }

  bool begin_entry(const std::string& name) {
    name_ = name;
    if (!names_.insert(name).second) return refuse(fmt::format("{}: is given twice", subject()));
    tensor_ = {};
    tensor_.name = name;
    fields_.clear();
    offset_count_ = 0;
    return true;
  }

  bool begin_field(const std::string& field) {
    key_ = field;
    if (field != "dtype" && field != "shape" && field != "data_offsets") {
      return refuse(fmt::format("{}: has an unknown field {}", subject(), shown_name(field)));
    }
    if (!fields_.insert(field).second) return refuse(fmt::format("{}: {} is given twice", subject(), field));
    return true;
  }

  bool end_tensor() {
    if (fields_.size() != 3) return refuse(fmt::format("{}: needs dtype, shape and data_offsets", subject()));
    if (offset_count_ != 2) return refuse(fmt::format("{}: data_offsets must be two numbers", subject()));
    const auto [begin, end] = offsets_;
    if (begin > end) return refuse(fmt::format("{}: data_offsets [{}, {}] run backwards", subject(), begin, end));
    tensor_.offset = Bytes(begin);
    tensor_.size = Bytes(end - begin);
    header_.tensors.push_back(std::move(tensor_));
    return true;
  }

  SafetensorsHeader header_;
  std::string reason_;
  Place place_ = Place::outside;
  std::unordered_set<std::string> names_;

  // These belong to the entry that is being read.
  std::string name_;
  std::string key_;
  std::string metadata_name_;
  StoredTensor tensor_;
  std::unordered_set<std::string> fields_;
  std::array<std::uint64_t, 2> offsets_{};
  std::size_t offset_count_ = 0;
};

// Shape and dtype give the bytes that data_offsets span.
void check_size(const StoredTensor& tensor, const std::string& path) {
  const std::size_t element = element_size(tensor.dtype);
  if (element == 0) {
    throw DataError(
        fmt::format("{}: tensor {}: unknown dtype {}", path, shown_name(tensor.name), shown_name(tensor.dtype)));
  }
  std::uint64_t size = element;
  bool overflow = false;
  for (const std::size_t extent : tensor.shape) overflow |= __builtin_mul_overflow(size, extent, &size);
  if (overflow || size != tensor.size.count()) {
    throw DataError(fmt::format("{}: tensor {}: shape {} of {} needs {} bytes, but data_offsets span {}", path,
                                shown_name(tensor.name), to_string(tensor.shape), tensor.dtype,
                                overflow ? "more than 2^64" : std::to_string(size), tensor.size.count()));
  }
}

// The tensors lie one after the other, from the beginning of the data to its end.
void check_ranges(std::span<const StoredTensor> tensors, std::uint64_t data_size, const std::string& path) {
  std::vector<const StoredTensor*> order;
  for (const StoredTensor& tensor : tensors) order.push_back(&tensor);
  std::sort(order.begin(), order.end(), [](const StoredTensor* a, const StoredTensor* b) {
    return std::pair(a->offset, a->size) < std::pair(b->offset, b->size);
  });
  Bytes end;
  for (const StoredTensor* tensor : order) {
    const Bytes begin = tensor->offset;
    if (begin != end) {
      throw DataError(
          fmt::format("{}: tensor {}: begins at byte {} of the data, {} {}, where the tensor before it ends", path,
                      shown_name(tensor->name), begin.count(), begin < end ? "before" : "after", end.count()));
    }
    end = begin + tensor->size;
    if (end.count() > data_size) {
      throw DataError(fmt::format("{}: tensor {}: ends at byte {} of the data, but the file has {}: cut off?", path,
                                  shown_name(tensor->name), end.count(), data_size));
    }
  }
  if (end.count() != data_size) {
    throw DataError(fmt::format("{}: {} bytes behind the last tensor belong to none", path, data_size - end.count()));
  }
}

// `data_size`: the bytes after the header.
SafetensorsHeader parse_header(std::string_view json, std::uint64_t data_size, const std::string& path) {
  HeaderEvents events;
  if (!parse_json(json, events)) throw DataError(fmt::format("{}: {}", path, events.reason()));
  SafetensorsHeader header = events.take_header();
  for (const StoredTensor& tensor : header.tensors) check_size(tensor, path);
  check_ranges(header.tensors, data_size, path);
  return header;
}

}  // namespace

std::size_t element_size(std::string_view dtype) {
  const auto found =
      std::find_if(dtypes.begin(), dtypes.end(), [&](const NamedSize& known) { return known.name == dtype; });
  return found == dtypes.end() ? 0 : found->bytes;
}

std::string_view stored_name(DType type) {
  switch (type) {
    case DType::fp32: return "F32";
    case DType::bf16: return "BF16";
    case DType::fp16: return "F16";
    case DType::u8: return "U8";
    case DType::int8: break;  // travels alone
  }
  throw InternalError("safetensors: a dtype that does not exist");
}

std::string shown_name(std::string_view name) {
  constexpr std::size_t longest = 100;
  std::string text = quoted_ascii(name.substr(0, longest));
  return name.size() > longest ? text + "…" : text;
}

SafetensorsHeader read_header(std::uint64_t file_size, const std::string& path,
                              const std::function<void(std::uint64_t place, std::span<std::byte> to)>& read) {
  if (file_size < length_field) throw DataError(fmt::format("{}: is too short to be a safetensors file", path));
  std::uint64_t length = 0;
  read(0, std::as_writable_bytes(std::span(&length, 1)));
  if (length > file_size - length_field || length > safetensors_header_limit.count()) {
    throw DataError(
        fmt::format("{}: is not a safetensors file, or damaged: its header would be {} bytes long, in a file of {}",
                    path, length, file_size));
  }
  std::string json(length, '\0');
  read(length_field, std::as_writable_bytes(std::span(json)));
  const std::uint64_t data = length_field + length;
  SafetensorsHeader header = parse_header(json, file_size - data, path);
  for (StoredTensor& tensor : header.tensors) tensor.offset += Bytes(data);
  return header;
}

void require_inside(const StoredTensor& tensor, Bytes first, std::uint64_t size, const std::string& path) {
  if (first <= tensor.size && size <= (tensor.size - first).count()) return;
  throw UsageError(fmt::format("{}: tensor {}: {} bytes from byte {} are outside its {}", path, shown_name(tensor.name),
                               size, first.count(), tensor.size.count()));
}

namespace {

// Throws UsageError for what read_header() refuses.
void check_readable(std::span<const StoredTensor> tensors) {
  std::unordered_set<std::string_view> names;
  for (const StoredTensor& tensor : tensors) {
    if (tensor.name.empty()) throw UsageError("safetensors: a tensor needs a name");
    if (tensor.name == metadata_key) throw UsageError("safetensors: __metadata__ is no name for a tensor");
    if (!names.insert(tensor.name).second) {
      throw UsageError(fmt::format("safetensors: tensor {} is given twice", shown_name(tensor.name)));
    }
    if (tensor.shape.size() > most_dimensions) {
      throw UsageError(fmt::format("safetensors: tensor {} has {} dimensions, and can have {}", shown_name(tensor.name),
                                   tensor.shape.size(), most_dimensions));
    }
  }
}

}  // namespace

std::string compose_header(std::span<const StoredTensor> tensors, const std::map<std::string, std::string>& metadata) {
  check_readable(tensors);
  JsonText header(JsonText::Form::in_one_line, "safetensors: names and metadata must be UTF-8");
  header.begin_object();
  if (!metadata.empty()) header.member(metadata_key, metadata);
  for (const StoredTensor& tensor : tensors) {
    header.key(tensor.name).begin_object().member("dtype", tensor.dtype);
    header.key("shape").begin_list();
    for (const std::size_t extent : tensor.shape) header.whole(extent);
    header.end_list().key("data_offsets").begin_list();
    header.whole(tensor.offset.count()).whole((tensor.offset + tensor.size).count());
    header.end_list().end_object();
  }
  std::string text = header.end_object().take();
  text.resize(round_up(length_field + text.size(), 64) - length_field, ' ');
  if (text.size() > safetensors_header_limit.count()) {
    throw UsageError(
        fmt::format("safetensors: a header of {} bytes names {} tensors, and no reader takes more than {} bytes: give "
                    "them shorter names, or split them over more files",
                    text.size(), tensors.size(), safetensors_header_limit.count()));
  }
  return text;
}

}  // namespace tessera::checkpoint
