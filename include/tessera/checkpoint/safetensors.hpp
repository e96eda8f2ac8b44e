// The safetensors file format (https://github.com/huggingface/safetensors), in this order: eight bytes, little-endian,
// with the header's length; the header, a JSON object; the tensors' bytes, row-major, little-endian, without gaps.
//   {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}, …, "__metadata__": {"key": "text"}}
//
// Both classes move byte ranges of one tensor at a time, so that no rank ever holds a model.
// Errors: DataError; the text begins with the path and names the tensor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/bytes.hpp"
#include "tessera/base/dtype.hpp"
#include "tessera/base/shape.hpp"

#pragma GCC visibility push(default)

namespace tessera {

inline constexpr Bytes safetensors_header_limit{100'000'000};  // a longer header is refused, as the reference does

struct StoredTensor {
  std::string name;
  std::string dtype;  // as the file has it: "F32", "BF16", "I64", …
  Shape shape;
  Bytes offset;  // from the file's beginning
  Bytes size;
};

// Reads a file that may be damaged or hostile: everything in the header is checked before anything is believed.
// Thread safety: const functions may run at the same time. Blocks on the file system.
class SafetensorsReader {
 public:
  // Opens the file, and reads and checks the header. Throws DataError: not a regular file, a header longer than the
  // file or the limit, not the JSON that it must be, names given twice, shapes that do not fit their bytes, ranges that
  // overlap, leave gaps or pass the file's end.
  explicit SafetensorsReader(std::filesystem::path path);
  SafetensorsReader(SafetensorsReader&&) noexcept;
  SafetensorsReader& operator=(SafetensorsReader&&) noexcept;
  ~SafetensorsReader();

  const std::filesystem::path& path() const;
  const std::vector<StoredTensor>& tensors() const;       // in the order of the header
  const StoredTensor* find(std::string_view name) const;  // null when there is none
  const std::map<std::string, std::string>& metadata() const;

  // Bytes [first, first + to.size()) of the tensor. Throws UsageError when outside the tensor.
  void read(const StoredTensor& tensor, Bytes first, std::span<std::byte> to) const;
  // Elements [first, first + to.size()) of an F32, BF16 or F16 tensor, exactly, as fp32. Throws DataError for other
  // dtypes.
  void read_floats(const StoredTensor& tensor, std::size_t first, std::span<float> to) const;

 private:
  class [[gnu::visibility("hidden")]] Implementation;
  std::unique_ptr<Implementation> implementation_;
};

// True for the dtypes that read_floats() can read.
bool is_floating(const StoredTensor& tensor);

struct TensorSpec {
  std::string name;
  Shape shape;
  DType dtype = DType::fp32;
};

// Writes a file together with other ranks. Each makes a writer from the same specs; then one calls create(), after it
// the others open(), each writes ranges and calls flush(), and after all of that the first calls finish(). The ordering
// is the callers'. Until finish() the file stands under the path + ".partial"; the creator's destructor removes it
// there.
class SafetensorsWriter {
 public:
  // Lays the file out; does not touch it. Throws UsageError for a name given twice, empty, "__metadata__" or not UTF-8.
  SafetensorsWriter(std::filesystem::path path, std::vector<TensorSpec> tensors,
                    const std::map<std::string, std::string>& metadata = {});
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;
  ~SafetensorsWriter();

  // Makes the partial file with its header and full size. Throws DataError when another program is writing the same
  // file.
  void create();
  void open();  // the partial file that another rank created

  // Bytes [first, first + from.size()) of tensor `tensor` (its place in the specs). Throws UsageError when outside the
  // tensor.
  void write(std::size_t tensor, Bytes first, std::span<const std::byte> from);
  void flush();   // everything that was written here is on the device
  void finish();  // the creator: the file gets its name, in one step, in place of what stood there

  const std::filesystem::path& path() const;
  const std::filesystem::path& partial_path() const;
  Bytes file_size() const;

 private:
  class [[gnu::visibility("hidden")]] Implementation;
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace tessera

#pragma GCC visibility pop
