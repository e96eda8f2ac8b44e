// Whole safetensors files, opened as every file is, out of memory instead of from a disk.
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "fuzz.hpp"
#include "tessera/checkpoint/safetensors.hpp"

namespace {

// A file without a name, whose content is replaced by each input.
int memory_file() {
  static const int handle = ::memfd_create("input", 0);
  return handle;
}

void put(std::string_view input) {
  const int handle = memory_file();
  fuzz::require(::ftruncate(handle, 0) == 0, "the file cannot be emptied");
  fuzz::require(::pwrite(handle, input.data(), input.size(), 0) == static_cast<ssize_t>(input.size()),
                "the file cannot be written");
}

}  // namespace

void fuzz::read_input(std::string_view input) {
  put(input);
  const tessera::SafetensorsReader reader(fmt::format("/proc/self/fd/{}", memory_file()));
  for (const tessera::StoredTensor& tensor : reader.tensors()) {
    require(tensor.offset.count() <= input.size() && tensor.size.count() <= input.size() - tensor.offset.count(),
            "a tensor lies outside its file");
    require(reader.find(tensor.name) != nullptr, "a tensor is not found by its name");
    if (tensor.size.count() == 0) continue;
    std::array<std::byte, 1> last;
    reader.read(tensor, tensor.size - tessera::Bytes(1), last);
  }
}
