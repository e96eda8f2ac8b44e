// Checkpoints of masters in bf16: in their own type, the same bytes by any ranks; a run that goes on bit for bit on
// others; and the way from masters of one type to the other.
#include <doctest/doctest.h>

#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "../extent.hpp"
#include "../shard/tensors.hpp"
#include "temporary_folder.hpp"
#include "tessera/checkpoint/checkpoint_reader.hpp"
#include "tessera/checkpoint/checkpointer.hpp"
#include "tessera/checkpoint/weights.hpp"
#include "tessera/optim/adamw.hpp"

namespace bf16_masters_checkpoint_test {

namespace {

using namespace tessera;

namespace fs = std::filesystem;
using Tensors = std::map<std::string, tensors::Bytes>;

// A large one, so that files have several blocks, some of several ranks.
const tensors::Wrapping sizes = {{1, 257, 0}, {2'200'001, 6}, {255, 1031}};

struct Place {
  int ranks;
  Strategy strategy = Strategy::fsdp;
  Checkpointing checkpointing = Checkpointing::blocking;
  DType masters = DType::bf16;
};

Tensors on(const Place& place, const std::function<void(tensors::Net&)>& body) {
  Tensors values;
  std::mutex mutex;
  launch({.ranks = place.ranks, .timeout = std::chrono::seconds(60)}, [&](World& world) {
    const FullyShardOptions options{.strategy = place.strategy,
                                    .precision = {.parameter = DType::bf16, .masters = place.masters},
                                    .checkpointing = place.checkpointing};
    tensors::Net net(world, options, sizes, AdamW{.learning_rate = 0.01f});
    body(net);
    net.collect(values, mutex);
  });
  return values;
}

// Trains the steps [first, end), from the latest checkpoint where the first is not 0, and saves.
Tensors run(const Place& place, const fs::path& directory, int first, int end) {
  return on(place, [&](tensors::Net& net) {
    Checkpointer checkpoints(net.model, {.directory = directory});
    if (first > 0) checkpoints.load(checkpoints.latest()->path);
    for (int step = first; step < end; ++step) net.step(step);
    checkpoints.save({.step = std::uint64_t(end)});
    checkpoints.wait();
  });
}

template <typename To, typename From>
tensors::Bytes converted(const tensors::Bytes& bytes) {
  std::vector<From> from(bytes.size() / sizeof(From));
  std::memcpy(from.data(), bytes.data(), bytes.size());
  tensors::Bytes result(from.size() * sizeof(To));
  for (std::size_t i = 0; i < from.size(); ++i) {
    const To value(static_cast<float>(from[i]));
    std::memcpy(result.data() + i * sizeof(To), &value, sizeof(To));
  }
  return result;
}

}  // namespace

TEST_CASE("bf16_masters_are_stored_in_their_own_type_and_the_same_bytes_by_any_ranks") {
  const TemporaryFolder folder;
  run({.ranks = 1}, folder / "1", 0, 2);
  const auto expected = files_in(folder / "1/step-00000002");
  const CheckpointReader reader(folder / "1/step-00000002");
  CHECK(reader.find(TensorKind::model, "unit1.t257")->dtype == "BF16");
  CHECK(reader.find(TensorKind::optimizer, "m/unit1.t257")->dtype == "F32");
  for (const Place& place : {Place{3, Strategy::ddp}, Place{5, Strategy::zero2, Checkpointing::background}}) {
    const fs::path directory = folder / std::to_string(place.ranks);
    run(place, directory, 0, 2);
    CHECK((files_in(directory / "step-00000002") == expected));
  }
}

TEST_CASE("a_run_with_bf16_masters_goes_on_bit_for_bit_on_other_ranks_and_strategies") {
  const TemporaryFolder folder;
  const Tensors expected = run({.ranks = 1}, folder / "whole", 0, 4);
  run({3, Strategy::zero2}, folder / "parts", 0, 2);
  CHECK((run({.ranks = 2}, folder / "parts", 2, 4) == expected));
}

// fp32 masters are rounded to nearest, bf16 ones widened; states go on as they are.
TEST_CASE("masters_of_one_type_set_out_from_a_checkpoint_of_the_other") {
  for (const Place& place :
       tests::all_or_last({Place{1}, Place{3, Strategy::ddp}, Place{2, Strategy::fsdp, Checkpointing::background}})) {
    CAPTURE(place.ranks);
    const TemporaryFolder folder;
    Place wide = place;
    wide.masters = DType::fp32;
    const Tensors saved = run(wide, folder / "wide", 0, 2);
    const auto load = [&](tensors::Net& net) {
      Checkpointer checkpoints(net.model, {.directory = folder / "wide"});
      checkpoints.load(checkpoints.latest()->path);
    };
    const Tensors narrow = on(place, load);
    for (const auto& [name, bytes] : saved) {
      const bool master = name.starts_with("master/");
      CHECK((narrow.at(name) == (master ? converted<bf16, float>(bytes) : bytes)));
    }
    run(place, folder / "narrow", 0, 1);
    const Tensors before = run(place, folder / "narrow", 1, 2);
    const Tensors widened = on(wide, [&](tensors::Net& net) {
      Checkpointer checkpoints(net.model, {.directory = folder / "narrow"});
      checkpoints.load(checkpoints.latest()->path);
    });
    for (const auto& [name, bytes] : before) {
      const bool master = name.starts_with("master/");
      CHECK((widened.at(name) == (master ? converted<float, bf16>(bytes) : bytes)));
    }
  }
}

TEST_CASE("files_of_weights_are_fp32_and_round_to_nearest_into_bf16_masters") {
  const TemporaryFolder folder;
  const Place wide{2, Strategy::fsdp, Checkpointing::none, DType::fp32}, narrow{3, Strategy::ddp, Checkpointing::none};
  const fs::path file = folder / "weights.safetensors", again = folder / "again.safetensors";
  const Tensors dumped = on(wide, [&](tensors::Net& net) {
    net.step(0);
    dump_weights(net.model, file);
  });
  const Tensors loaded = on(narrow, [&](tensors::Net& net) {
    load_weights(net.model, file);
    dump_weights(net.model, again);
  });
  const Tensors back = on(wide, [&](tensors::Net& net) { load_weights(net.model, again); });
  for (const auto& [name, bytes] : dumped) {
    if (!name.starts_with("master/")) continue;
    const tensors::Bytes rounded = converted<bf16, float>(bytes);
    CHECK((loaded.at(name) == rounded));
    CHECK((back.at(name) == converted<float, bf16>(rounded)));
  }
}

}  // namespace bf16_masters_checkpoint_test
