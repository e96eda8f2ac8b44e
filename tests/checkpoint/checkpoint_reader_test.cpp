// Checkpoints read whole and in parts, and damage of every kind named with its file and its tensors.
#include "tessera/checkpoint/checkpoint_reader.hpp"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <fstream>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "../error_text.hpp"
#include "sample_checkpoint.hpp"
#include "temporary_folder.hpp"
#include "tessera/base/error.hpp"
#include "tessera/checkpoint/checkpoints.hpp"

using namespace tessera;

namespace checkpoint_reader_test {

namespace fs = std::filesystem;

std::vector<std::byte> block_staging() { return std::vector<std::byte>(checkpoint_block.count()); }

std::vector<float> read_floats(const CheckpointReader& reader, const CheckpointTensor& tensor, std::size_t first,
                               std::size_t count) {
  std::vector<std::byte> staging = block_staging();
  std::vector<float> values(count);
  reader.read(tensor, Bytes(first * sizeof(float)), std::as_writable_bytes(std::span(values)), staging);
  return values;
}

std::vector<float> expected_floats(const std::string& name, std::size_t first, std::size_t count) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = sample_value(name, 0, first + i);
  return values;
}

void check_all(const CheckpointReader& reader) {
  for (const TensorKind kind : tensor_kinds) {
    for (const CheckpointTensor& tensor : reader.tensors(kind)) {
      const std::size_t count = tensor.size.count() / sizeof(float);
      CHECK(read_floats(reader, tensor, 0, count) == expected_floats(tensor.name, 0, count));
    }
  }
}

std::string failure(const std::function<void()>& work) { return tests::error_text<DataError>(work, "nothing thrown"); }

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// The text of every tensor's reading that fails.
std::vector<std::string> failures(const CheckpointReader& reader) {
  std::vector<std::string> texts;
  std::vector<std::byte> staging = block_staging();
  for (const TensorKind kind : tensor_kinds) {
    for (const CheckpointTensor& tensor : reader.tensors(kind)) {
      std::vector<std::byte> bytes(tensor.size.count());
      const std::string text = failure([&] { reader.read(tensor, Bytes(0), bytes, staging); });
      if (text != "nothing thrown") texts.push_back(text);
    }
  }
  return texts;
}

void rewrite(const fs::path& path, const std::string& from, const std::string& to) {
  std::string text = bytes_in(path);
  REQUIRE(contains(text, from));
  text.replace(text.find(from), from.size(), to);
  std::ofstream(path) << text;
}

TEST_CASE("a_checkpoint_gives_its_state_and_tensors_and_aliases") {
  const TemporaryFolder folder;
  const SampleCheckpoint sample = sample_checkpoint();
  const CheckpointReader reader(write_checkpoint(folder.path(), sample));
  CHECK(reader.state().step == 100);
  CHECK(reader.state().updates == 99);
  CHECK(reader.state().sampler == sample.state.sampler);
  CHECK(reader.manifest().files.size() == 4);
  CHECK(reader.tensors(TensorKind::model).size() == 5);
  CHECK(reader.tensors(TensorKind::optimizer).size() == 10);
  CHECK(reader.tensors(TensorKind::buffers).size() == 1);
  CHECK(reader.aliases() == std::map<std::string, std::string>{{"head.weight", "embedding.weight"}});
  CHECK(reader.find(TensorKind::model, "head.weight") == reader.find(TensorKind::model, "embedding.weight"));
  CHECK(reader.find(TensorKind::model, "embedding.weight")->shape == Shape{1453, 1447});
  CHECK(reader.find(TensorKind::model, "m/embedding.weight") == nullptr);
  CHECK(reader.find(TensorKind::optimizer, "m/embedding.weight") != nullptr);
  CHECK(reader.find(TensorKind::optimizer, "head.weight") == nullptr);
  check_all(reader);
}

TEST_CASE("any_range_of_a_tensor_is_read_across_the_edges_of_blocks") {
  const TemporaryFolder folder;
  const CheckpointReader reader(write_checkpoint(folder.path(), sample_checkpoint()));
  const CheckpointTensor& tensor = *reader.find(TensorKind::model, "embedding.weight");
  const std::size_t count = tensor.size.count() / sizeof(float);
  const std::size_t edge = (checkpoint_block - tensor.offset).count() / sizeof(float);  // the second block's first
  for (const std::size_t first : {std::size_t{0}, edge - 1, edge, edge + 1, count - 3, count}) {
    for (const std::size_t length : {std::size_t{0}, std::size_t{1}, std::size_t{3}, std::size_t{2'000'003}}) {
      const std::size_t taken = std::min(length, count - first);
      CHECK(read_floats(reader, tensor, first, taken) == expected_floats(tensor.name, first, taken));
    }
  }
}

TEST_CASE("many_ranges_in_any_order_are_read_at_once") {
  const TemporaryFolder folder;
  const CheckpointReader reader(write_checkpoint(folder.path(), sample_checkpoint()));
  for (const std::size_t ranks : {1u, 2u, 3u, 7u, 5000u}) {
    // Every rank's share of every tensor, in one call, from the last to the first.
    std::vector<std::vector<float>> values;
    std::vector<TensorRange> ranges;
    for (const TensorKind kind : tensor_kinds) {
      for (const CheckpointTensor& tensor : reader.tensors(kind))
        values.emplace_back(tensor.size.count() / sizeof(float));
    }
    std::size_t place = 0;
    for (const TensorKind kind : tensor_kinds) {
      for (const CheckpointTensor& tensor : reader.tensors(kind)) {
        std::vector<float>& to = values[place++];
        for (std::size_t rank = 0; rank < ranks; ++rank) {
          const std::size_t begin = to.size() * rank / ranks;
          const std::size_t end = to.size() * (rank + 1) / ranks;
          ranges.push_back({&tensor, Bytes(begin * sizeof(float)),
                            std::as_writable_bytes(std::span(to).subspan(begin, end - begin))});
        }
      }
    }
    std::reverse(ranges.begin(), ranges.end());
    std::vector<std::byte> staging = block_staging();
    reader.read(ranges, staging);
    place = 0;
    for (const TensorKind kind : tensor_kinds) {
      for (const CheckpointTensor& tensor : reader.tensors(kind)) {
        const std::vector<float>& read = values[place++];
        CHECK(read == expected_floats(tensor.name, 0, read.size()));
      }
    }
  }
}

TEST_CASE("a_whole_block_needs_no_staging_and_a_part_of_one_does") {
  const TemporaryFolder folder;
  const CheckpointReader reader(write_checkpoint(folder.path(), sample_checkpoint()));
  const CheckpointTensor& tensor = *reader.find(TensorKind::model, "embedding.weight");
  std::vector<std::byte> block = block_staging();
  const std::array<BlockPart, 3> parts = {BlockPart{Bytes(0), std::span(block).first(1000)},
                                          BlockPart{Bytes(1000), std::span(block).subspan(1000, 0)},
                                          BlockPart{Bytes(1000), std::span(block).subspan(1000)}};
  reader.read_block(tensor.file, 1, parts, {});
  const std::size_t first = (checkpoint_block - tensor.offset).count();
  std::vector<float> values(block.size() / sizeof(float));
  std::memcpy(values.data(), block.data(), block.size());
  CHECK(values == expected_floats(tensor.name, first / sizeof(float), values.size()));
  CHECK_THROWS_AS(reader.read_block(tensor.file, 1, std::span(parts).first(1), {}), UsageError);
  CHECK_THROWS_AS(reader.read_block(tensor.file, 1, std::span(parts).last(1), {}), UsageError);
  CHECK_THROWS_AS(reader.read_block(tensor.file, 99, parts, {}), UsageError);
}

TEST_CASE("ranges_outside_their_tensor_and_ranges_that_overlap_are_the_callers_error") {
  const TemporaryFolder folder;
  const CheckpointReader reader(write_checkpoint(folder.path(), sample_checkpoint()));
  const CheckpointTensor& tensor = *reader.find(TensorKind::model, "blocks.0.bias");
  std::vector<std::byte> staging = block_staging();
  std::vector<std::byte> to(28);
  CHECK_THROWS_AS(reader.read(tensor, Bytes(1), to, staging), UsageError);
  CHECK_THROWS_AS(reader.read(tensor, Bytes(~std::uint64_t{0}), to, staging), UsageError);
  const std::array<TensorRange, 2> ranges = {TensorRange{&tensor, Bytes(0), std::span(to).first(8)},
                                             TensorRange{&tensor, Bytes(7), std::span(to).last(8)}};
  CHECK_THROWS_WITH_AS(reader.read(ranges, staging), "checkpoint: parts of a block overlap", UsageError);
}

TEST_CASE("several_threads_read_at_the_same_time") {
  const TemporaryFolder folder;
  const CheckpointReader reader(write_checkpoint(folder.path(), sample_checkpoint()));
  std::array<std::vector<float>, 3> read;
  {
    std::vector<std::jthread> threads;
    for (std::vector<float>& values : read) {
      threads.emplace_back(
          [&] { values = read_floats(reader, reader.tensors(TensorKind::optimizer)[0], 17, 1'000'003); });
    }
  }
  for (const std::vector<float>& values : read) CHECK(values == expected_floats("m/embedding.weight", 17, 1'000'003));
}

TEST_CASE("split_files_are_one_set_of_tensors") {
  const TemporaryFolder folder;
  SampleCheckpoint sample = sample_checkpoint();
  sample.split_limit = Bytes(2'500'000);
  const fs::path path = write_checkpoint(folder.path(), sample);
  CHECK(fs::exists(path / "model-00001-of-00002.safetensors"));
  CHECK(fs::exists(path / "optimizer-00004-of-00004.safetensors"));
  const CheckpointReader reader(path);
  CHECK(reader.tensors(TensorKind::model).size() == 5);
  CHECK(reader.find(TensorKind::model, "head.weight") != nullptr);
  check_all(reader);
  CHECK(verify_checkpoint(path).empty());
}

TEST_CASE("an_index_that_does_not_fit_its_files_is_refused") {
  const TemporaryFolder folder;
  SampleCheckpoint sample = sample_checkpoint();
  sample.split_limit = Bytes(2'500'000);
  const auto complaint = [&](const std::string& from, const std::string& to) {
    const fs::path path = write_checkpoint(folder.path(), sample);
    rewrite(path / "model.safetensors.index.json", from, to);
    seal_checkpoint(path, 100);
    const std::string text = failure([&] { CheckpointReader{path}; });
    CHECK(verify_checkpoint(path) == std::vector{text});
    return text;
  };
  CHECK(contains(complaint("\"total_size\": ", "\"total_size\": 1"), "index.json: total_size is "));
  CHECK(contains(complaint("\"blocks.0.bias\"", "\"blocks.0.bios\""),
                 R"(does not say that tensor "blocks.0.bias" is in model-0000)"));
  CHECK(contains(complaint("\"weight_map\": {", "\"weight_map\": { \"a\": \"model-00001-of-00002.safetensors\","),
                 R"(tensor "a" is not in model-00001-of-00002.safetensors)"));
  CHECK(contains(complaint("model-00002-of-00002", "../odel-00002-of-00002"), "is none of the 3 files"));
  const fs::path path = write_checkpoint(folder.path(), sample);
  fs::copy_file(path / "model-00001-of-00002.safetensors", path / "model.safetensors");
  seal_checkpoint(path, 100);
  CHECK(contains(failure([&] { CheckpointReader{path}; }), "stands beside model.safetensors"));
}

TEST_CASE("files_that_lack_and_files_that_no_checkpoint_has_are_named") {
  const TemporaryFolder folder;
  const auto complaint = [&](const std::function<void(const fs::path&)>& change) {
    const fs::path path = write_checkpoint(folder.path(), sample_checkpoint());
    change(path);
    seal_checkpoint(path, 100);
    const std::string text = failure([&] { CheckpointReader{path}; });
    CHECK(verify_checkpoint(path) == std::vector{text});
    fs::remove_all(path);
    return text.substr(std::min(text.size(), path.string().size() + 1));
  };
  CHECK(complaint([](const fs::path& path) { fs::remove(path / "state.json"); }) ==
        "manifest.json: names no state.json");
  CHECK(complaint([](const fs::path& path) { fs::remove(path / "model.safetensors"); }) ==
        "manifest.json: names neither model.safetensors nor model.safetensors.index.json");
  CHECK(complaint([](const fs::path& path) { std::ofstream(path / "other.safetensors") << "x"; }) ==
        R"(manifest.json: names "other.safetensors", which no checkpoint has)");
  CHECK(complaint([](const fs::path& path) { rewrite(path / "state.json", "\"step\": 100", "\"step\": 101"); }) ==
        "state.json: is the state of step 101, and the manifest that of step 100");
  CHECK(complaint([](const fs::path& path) { std::ofstream(path / "model.safetensors") << "x"; }) ==
        "model.safetensors: is too short to be a safetensors file");
}

TEST_CASE("a_checkpoint_without_optimizer_and_buffers_is_one") {
  const TemporaryFolder folder;
  SampleCheckpoint sample = sample_checkpoint();
  sample.optimizer.clear();
  sample.buffers.clear();
  const CheckpointReader reader(write_checkpoint(folder.path(), sample));
  CHECK(reader.tensors(TensorKind::optimizer).empty());
  check_all(reader);
}

TEST_CASE("a_flipped_bit_is_named_with_its_file_and_its_tensors_and_spares_the_others") {
  const TemporaryFolder folder;
  const fs::path path = write_checkpoint(folder.path(), sample_checkpoint());
  const CheckpointReader reader(path);
  const CheckpointTensor& tensor = *reader.find(TensorKind::model, "embedding.weight");
  flip_bit(path / "model.safetensors",
           (checkpoint_block + Bytes(5)).count());  // in the second block, inside this tensor
  std::vector<std::byte> staging = block_staging();
  std::vector<std::byte> bytes(4);
  reader.read(tensor, Bytes(0), bytes, staging);  // of the first block
  const Bytes second = checkpoint_block - tensor.offset;
  const std::string text = failure([&] { reader.read(tensor, second, bytes, staging); });
  CHECK(contains(text, "model.safetensors: bytes 4194304 to 8388607 do not"));
  CHECK(contains(text, "do not match the manifest's checksum"));
  CHECK(contains(text, "; tensor \"embedding.weight\" is in them"));
  CHECK(verify_checkpoint(path) == std::vector{text});
  for (const std::string& each : failures(reader)) CHECK(contains(each, "model.safetensors: bytes 4194304 to "));
}

TEST_CASE("a_flipped_bit_anywhere_is_found") {
  const TemporaryFolder folder;
  SampleCheckpoint small = sample_checkpoint();
  small.model.erase(small.model.begin());
  small.model.back().shape = {13};
  small.optimizer.clear();
  small.metadata.clear();
  const fs::path path = write_checkpoint(folder.path(), small);
  std::mt19937 random(11);
  for (const char* name : {"model.safetensors", "buffers.safetensors", "state.json", "manifest.json"}) {
    const std::uint64_t size = fs::file_size(path / name);
    for (int round = 0; round < 40; ++round) {
      const std::uint64_t byte = random() % size;
      flip_bit(path / name, byte);
      const std::vector<std::string> faults = verify_checkpoint(path);
      CHECK(faults.size() == 1);
      if (!faults.empty()) CHECK(contains(faults[0], name));
      CHECK(contains(failure([&] { CheckpointReader{path}; }), name));
      flip_bit(path / name, byte);
    }
  }
  CHECK(verify_checkpoint(path).empty());
}

TEST_CASE("a_file_that_was_cut_off_is_named_with_the_tensors_that_lack") {
  const TemporaryFolder folder;
  const fs::path path = write_checkpoint(folder.path(), sample_checkpoint());
  const std::uint64_t size = fs::file_size(path / "model.safetensors");
  fs::resize_file(path / "model.safetensors", size - 1);
  const std::string expected = fmt::format(
      "{}: has {} bytes, and {} by the manifest: cut off, or another checkpoint's; tensor \"blocks.0.weight\" is "
      "missing",
      (path / "model.safetensors").string(), size - 1, size);
  CHECK(failure([&] { CheckpointReader{path}; }) == expected);
  CHECK(verify_checkpoint(path) == std::vector{expected});
  CHECK(failure([&] { check_checkpoint(path); }) == expected);
}

TEST_CASE("a_file_that_is_cut_off_while_it_is_read_is_an_error") {
  const TemporaryFolder folder;
  const fs::path path = write_checkpoint(folder.path(), sample_checkpoint());
  const CheckpointReader reader(path);
  fs::resize_file(path / "optimizer.safetensors", 1000);
  const std::vector<std::string> texts = failures(reader);
  CHECK_FALSE(texts.empty());
  for (const std::string& text : texts) CHECK(contains(text, "optimizer.safetensors: ends at byte "));
}

TEST_CASE("a_file_of_another_checkpoint_is_named_with_its_tensors") {
  const TemporaryFolder folder;
  SampleCheckpoint other = sample_checkpoint();
  other.step = 200;
  other.seed = 1;
  const fs::path path = write_checkpoint(folder.path(), sample_checkpoint());
  const fs::path from = write_checkpoint(folder.path(), other);
  fs::copy_file(from / "optimizer.safetensors", path / "optimizer.safetensors", fs::copy_options::overwrite_existing);
  const std::string text = failure([&] { CheckpointReader{path}; });
  CHECK(contains(text, "optimizer.safetensors: bytes 0 to 4194303 do not match"));
  CHECK(contains(text, R"("m/embedding.weight")"));
  // Every block is another's.
  const std::vector<std::string> faults = verify_checkpoint(path);
  REQUIRE(faults.size() == block_count(Bytes(fs::file_size(path / "optimizer.safetensors"))));
  CHECK(contains(faults.back(), R"("v/blocks.0.weight")"));
}

TEST_CASE("a_manifest_of_another_step_is_named") {
  const TemporaryFolder folder;
  SampleCheckpoint other = sample_checkpoint();
  other.step = 200;
  other.seed = 1;
  const fs::path path = write_checkpoint(folder.path(), sample_checkpoint());
  const fs::path from = write_checkpoint(folder.path(), other);
  fs::copy_file(from / "manifest.json", path / "manifest.json", fs::copy_options::overwrite_existing);
  const std::string expected =
      (path / "manifest.json").string() + ": is the manifest of step 200, in the folder of step 100";
  CHECK(failure([&] { CheckpointReader{path}; }) == expected);
  const std::vector<std::string> faults = verify_checkpoint(path);
  REQUIRE_FALSE(faults.empty());
  CHECK(faults.front() == expected);
  CHECK(std::any_of(faults.begin(), faults.end(), [](const std::string& fault) {
    return contains(fault, "model.safetensors: bytes ") && contains(fault, R"("blocks.0.weight")");
  }));
}

TEST_CASE("verifying_finds_every_fault_and_tells_how_far_it_is") {
  const TemporaryFolder folder;
  const fs::path path = write_checkpoint(folder.path(), sample_checkpoint());
  fs::remove(path / "buffers.safetensors");
  flip_bit(path / "model.safetensors", 5'000'000);
  flip_bit(path / "optimizer.safetensors", 4'300'000);
  flip_bit(path / "optimizer.safetensors", 8'500'000);
  Bytes last;
  Bytes total;
  const std::vector<std::string> faults = verify_checkpoint(path, [&](Bytes done, Bytes all) {
    CHECK(done >= last);
    last = done;
    total = all;
  });
  CHECK(faults.size() == 4);
  CHECK(last == total);
  CHECK(total > Bytes(20'000'000));
}

TEST_CASE("a_checkpoint_that_goes_while_it_is_verified_is_not_called_damaged") {
  const TemporaryFolder folder;
  const fs::path path = write_checkpoint(folder.path(), sample_checkpoint());
  const std::string expected = path.string() + ": was removed, or got another name, while it was read";
  const auto verify = [&] {
    verify_checkpoint(path, [&](Bytes, Bytes) {
      std::error_code gone_already;
      fs::rename(path, path.string() + ".tmp", gone_already);
    });
  };
  CHECK_THROWS_WITH_AS(verify(), expected.c_str(), DataError);
}

TEST_CASE("a_path_that_leads_nowhere_is_a_fault_of_the_checkpoint") {
  const TemporaryFolder folder;
  fs::create_symlink(folder / "loop", folder / "loop");
  CHECK(verify_checkpoint(folder / "loop") == std::vector{(folder / "loop/manifest.json").string() +
                                                          ": cannot be opened: Too many levels of symbolic links"});
}

TEST_CASE("a_checkpoint_that_was_not_finished_is_not_read") {
  const TemporaryFolder folder;
  const fs::path path = write_checkpoint(folder.path(), sample_checkpoint());
  const fs::path unfinished = path.string() + ".tmp";
  fs::rename(path, unfinished);
  CHECK(failure([&] { CheckpointReader{unfinished}; }) ==
        unfinished.string() + ": is a checkpoint that was not finished");
}

}  // namespace checkpoint_reader_test
