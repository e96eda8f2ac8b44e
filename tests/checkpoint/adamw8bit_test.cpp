// Checkpoints of 8-bit moments: codes and scales in types of their own, the same bytes whatever the strategy and the
// ranks; and a run that goes on bit for bit on others.
#include "tessera/optim/adamw8bit.hpp"
#include "../extent.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "../error_text.hpp"
#include "../shard/tensors.hpp"
#include "temporary_folder.hpp"
#include "tessera/base/error.hpp"
#include "tessera/checkpoint/checkpoint_reader.hpp"
#include "tessera/checkpoint/checkpointer.hpp"
#include "tessera/checkpoint/safetensors.hpp"
#include "tessera/optim/adamw.hpp"

namespace adamw8bit_checkpoint_test {

namespace {

using namespace tessera;

namespace fs = std::filesystem;
using Tensors = std::map<std::string, tensors::Bytes>;

// A large one, so that files have several blocks, some of several ranks.
const tensors::Wrapping sizes = {{1, 257, 0}, {2'200'001, 6}, {255, 1031}};

struct Place {
  int ranks;
  Strategy strategy = Strategy::fsdp;
  std::size_t replicas = 1;
  Checkpointing checkpointing = Checkpointing::blocking;
  MemorySpace states_in = MemorySpace::device;
};

using MakeOptimizer = std::unique_ptr<Optimizer> (*)();
std::unique_ptr<Optimizer> in_8_bits() { return AdamW8bit{.learning_rate = 0.01f}; }
std::unique_ptr<Optimizer> in_fp32() { return AdamW{.learning_rate = 0.01f}; }

// Trains the steps [first, end), from the latest checkpoint where the first is not 0, and saves.
Tensors run(const Place& place, const fs::path& directory, int first, int end, MakeOptimizer optimizer = in_8_bits) {
  Tensors values;
  std::mutex mutex;
  launch({.ranks = place.ranks, .timeout = std::chrono::seconds(60)}, [&](World& world) {
    const FullyShardOptions options{
        .strategy = place.strategy, .replicas = place.replicas, .checkpointing = place.checkpointing};
    tensors::Net net(world, options, sizes, optimizer(), place.states_in);
    Checkpointer checkpoints(net.model, {.directory = directory});
    if (first > 0) checkpoints.load(checkpoints.latest()->path);
    for (int step = first; step < end; ++step) net.step(step);
    checkpoints.save({.step = std::uint64_t(end)});
    checkpoints.wait();
    net.collect(values, mutex);
  });
  return values;
}

}  // namespace

TEST_CASE("codes_and_scales_are_stored_in_their_own_types_and_the_same_bytes_by_any_ranks") {
  const TemporaryFolder folder;
  run({.ranks = 1}, folder / "1", 0, 2);
  const auto expected = files_in(folder / "1/step-00000002");
  const CheckpointReader reader(folder / "1/step-00000002");
  const auto stored = [&](const std::string& name) {
    const CheckpointTensor* const tensor = reader.find(TensorKind::optimizer, name);
    REQUIRE(tensor != nullptr);
    return tensor->dtype + to_string(tensor->shape);
  };
  CHECK(stored("m/unit1.t257") == "U8[257]");
  CHECK(stored("m_scale/unit1.t257") == "F32[2]");
  CHECK(stored("v/unit2.t2200001") == "U8[2200001]");
  CHECK(stored("v_scale/unit2.t2200001") == "F32[8594]");
  CHECK(stored("v_scale/unit1.t0") == "F32[0]");
  CHECK(stored("v_scale/unit1.t1") == "F32[1]");
  // A block of the checkpoint ends on a multiple of 4 bytes, and so inside no element.
  const SafetensorsReader file(folder / "1/step-00000002/optimizer.safetensors");
  for (const StoredTensor& tensor : file.tensors()) {
    if (tensor.dtype == "F32") CHECK(tensor.offset.count() % 4 == 0);
  }
  for (const Place& place :
       {Place{2}, Place{3, Strategy::ddp}, Place{5, Strategy::zero2, 1, Checkpointing::background},
        Place{4, Strategy::hsdp, 2}, Place{3, Strategy::fsdp, 1, Checkpointing::background, MemorySpace::host}}) {
    CAPTURE(place.ranks);
    const fs::path directory = folder / std::to_string(place.ranks);
    run(place, directory, 0, 2);
    CHECK((files_in(directory / "step-00000002") == expected));
    fs::remove_all(directory);
  }
}

TEST_CASE("a_run_with_eight_bit_moments_goes_on_bit_for_bit_on_other_ranks_and_strategies") {
  const TemporaryFolder folder;
  const Tensors expected = run({.ranks = 1}, folder / "whole", 0, 4);
  for (const Place& from : tests::all_or_last({Place{1}, Place{3, Strategy::zero2}})) {
    for (const Place& to :
         {Place{2}, Place{5, Strategy::ddp}, Place{3, Strategy::fsdp, 1, Checkpointing::blocking, MemorySpace::host}}) {
      const fs::path directory = folder / "parts";
      run(from, directory, 0, 2);
      CHECK((run(to, directory, 2, 4) == expected));
      fs::remove_all(directory);
    }
  }
}

TEST_CASE("states_of_another_optimizer_are_refused_by_name") {
  const auto message = [](MakeOptimizer saves, MakeOptimizer loads) {
    const TemporaryFolder folder;
    run({.ranks = 2}, folder.path(), 0, 1, saves);
    return tests::error_text<std::exception>([&] { run({.ranks = 2}, folder.path(), 1, 2, loads); });
  };
  const std::string narrow = message(in_fp32, in_8_bits), wide = message(in_8_bits, in_fp32);
  CAPTURE(narrow);
  CHECK(narrow.find("optimizer tensor \"m/unit1.t257\" is F32, expected U8") != std::string::npos);
  CHECK(narrow.find("states m, v, and the model's keeps m (u8), m_scale (fp32, one of 256 elements)") !=
        std::string::npos);
  CAPTURE(wide);
  CHECK(wide.find("optimizer tensor \"m/unit1.t257\" is U8, expected F32") != std::string::npos);
  CHECK(wide.find("states m, m_scale, v, v_scale, and the model's keeps m, v") != std::string::npos);
}

}  // namespace adamw8bit_checkpoint_test
