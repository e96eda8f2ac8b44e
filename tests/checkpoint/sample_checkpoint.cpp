// Samples of checkpoints.
#include "sample_checkpoint.hpp"

#include <algorithm>
#include <fstream>
#include <functional>
#include <iterator>
#include <span>
#include <string_view>

#include "checkpoint/checksum.hpp"
#include "temporary_folder.hpp"
#include "tessera/checkpoint/checkpoints.hpp"
#include "tessera/checkpoint/tensor_index.hpp"

using namespace tessera;

namespace {

namespace fs = std::filesystem;

template <typename Element>
void write_values(SafetensorsWriter& writer, std::size_t place, const TensorSpec& spec, std::uint64_t seed) {
  std::vector<Element> values(element_count(spec.shape));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = Element(sample_value(spec.name, seed, i));
  writer.write(place, Bytes(0), std::as_bytes(std::span(values)));
}

void write_file(const fs::path& path, const std::vector<TensorSpec>& specs, const SampleCheckpoint& sample) {
  const bool is_model = path.filename().string().starts_with("model");
  SafetensorsWriter writer(path, specs, is_model ? sample.metadata : std::map<std::string, std::string>{});
  writer.create();
  for (std::size_t i = 0; i < specs.size(); ++i) {
    switch (specs[i].dtype) {
      case DType::fp32: write_values<float>(writer, i, specs[i], sample.seed); break;
      case DType::bf16: write_values<bf16>(writer, i, specs[i], sample.seed); break;
      case DType::fp16: write_values<fp16>(writer, i, specs[i], sample.seed); break;
      case DType::u8:
      case DType::int8: break;
    }
  }
  writer.finish();
}

void write_kind(const fs::path& checkpoint, std::string_view stem, const std::vector<TensorSpec>& specs,
                const SampleCheckpoint& sample) {
  std::vector<Bytes> sizes;
  for (const TensorSpec& spec : specs) sizes.push_back(element_count(spec.shape) * size_of(spec.dtype));
  std::vector<std::size_t> begins = split_tensors(sizes, sample.split_limit);
  if (begins.size() == 1) return write_file(checkpoint / tensor_file_name(stem), specs, sample);
  TensorIndex index;
  for (std::size_t file = 0; file < begins.size(); ++file) {
    const std::size_t end = file + 1 < begins.size() ? begins[file + 1] : specs.size();
    const std::string name = tensor_file_name(stem, file, begins.size());
    write_file(
        checkpoint / name,
        {specs.begin() + static_cast<std::ptrdiff_t>(begins[file]), specs.begin() + static_cast<std::ptrdiff_t>(end)},
        sample);
    for (std::size_t i = begins[file]; i < end; ++i) {
      index.files[specs[i].name] = name;
      index.total_size += sizes[i];
    }
  }
  std::ofstream(checkpoint / tensor_index_name(stem)) << compose(index);
}

}  // namespace

SampleCheckpoint sample_checkpoint() {
  SampleCheckpoint sample;
  sample.model = {{.name = "embedding.weight", .shape = {1453, 1447}},  // 2.005 blocks
                  {.name = "blocks.0.bias", .shape = {7}},
                  {.name = "blocks.0.nothing", .shape = {0, 5}},
                  {.name = "blocks.0.scale", .shape = {}},
                  {.name = "blocks.0.weight", .shape = {613, 1009}}};  // 0.6 blocks
  for (const std::string_view state : {"m/", "v/"}) {
    for (const TensorSpec& spec : sample.model) {
      sample.optimizer.push_back({.name = std::string(state) + spec.name, .shape = spec.shape});
    }
  }
  sample.buffers = {{.name = "blocks.0.running", .shape = {11}}};
  sample.metadata = {{"writer", "a test"}, {"head.weight", "embedding.weight"}};
  sample.state = {.updates = 99,
                  .skipped_updates = 1,
                  .loss_scale = 1024.0f,
                  .sampler = SamplerState{.samples = 1797, .seed = 3, .epoch = 2, .position = 64},
                  .values = {{"note", "of a test"}}};
  return sample;
}

float sample_value(const std::string& tensor, std::uint64_t seed, std::size_t i) {
  std::uint64_t bits = (std::hash<std::string>{}(tensor) ^ seed) + i * 0x9e3779b97f4a7c15u;
  bits = (bits ^ (bits >> 31)) * 0xbf58476d1ce4e5b9u;
  return static_cast<float>(static_cast<std::int64_t>(bits)) * 0x1p-63f;
}

fs::path write_checkpoint(const fs::path& folder, const SampleCheckpoint& sample) {
  const fs::path checkpoint = folder / checkpoint_name(sample.step);
  fs::create_directories(checkpoint);
  write_kind(checkpoint, "model", sample.model, sample);
  if (!sample.optimizer.empty()) write_kind(checkpoint, "optimizer", sample.optimizer, sample);
  if (!sample.buffers.empty()) write_kind(checkpoint, "buffers", sample.buffers, sample);
  CheckpointState state = sample.state;
  state.step = sample.step;
  std::ofstream(checkpoint / state_name) << compose(state);
  seal_checkpoint(checkpoint, sample.step);
  return checkpoint;
}

void seal_checkpoint(const fs::path& checkpoint, std::uint64_t step) {
  Manifest manifest{.step = step};
  for (const fs::directory_entry& entry : fs::directory_iterator(checkpoint)) {
    if (entry.path().filename() == manifest_name) continue;
    const std::string bytes = bytes_in(entry.path());
    ManifestFile file{.name = entry.path().filename().string(), .size = Bytes(bytes.size())};
    for (std::size_t first = 0; first < bytes.size(); first += checkpoint_block.count()) {
      const std::string_view block = std::string_view(bytes).substr(first, checkpoint_block.count());
      file.blocks.push_back(checkpoint::crc32c(std::as_bytes(std::span(block))));
    }
    manifest.files.push_back(std::move(file));
  }
  std::sort(manifest.files.begin(), manifest.files.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  std::ofstream(checkpoint / manifest_name) << compose(manifest);
}

void flip_bit(const fs::path& path, std::uint64_t byte) {
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  file.seekg(static_cast<std::streamoff>(byte));
  const char damaged = static_cast<char>(file.get() ^ 0x10);
  file.seekp(static_cast<std::streamoff>(byte));
  file.put(damaged);
}
