// Checkpoints of tensors in types of their own, 8-bit moments and masters in bf16: the same bytes whatever the strategy
// and the ranks, a run that goes on bit for bit on others, and the way from masters of one type to the other.
#include <doctest/doctest.h>

#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "../error_text.hpp"
#include "../extent.hpp"
#include "../shard/tensors.hpp"
#include "temporary_folder.hpp"
#include "tessera/base/error.hpp"
#include "tessera/checkpoint/checkpoint_reader.hpp"
#include "tessera/checkpoint/checkpointer.hpp"
#include "tessera/checkpoint/safetensors.hpp"
#include "tessera/checkpoint/weights.hpp"
#include "tessera/optim/adamw.hpp"
#include "tessera/optim/adamw8bit.hpp"

namespace typed_tensors_test {

namespace {

using namespace tessera;

namespace fs = std::filesystem;
using Tensors = std::map<std::string, tensors::Bytes>;

// A large one, so that files have several blocks, some of several ranks.
const tensors::Wrapping sizes = {{1, 257, 0}, {2'200'001, 6}, {255, 1031}};

// A kind of model: its optimizer, and types of parameters.
struct Kind {
  std::unique_ptr<Optimizer> (*optimizer)();
  Precision precision = {};
};
std::unique_ptr<Optimizer> in_8_bits() { return AdamW8bit{.learning_rate = 0.01f}; }
std::unique_ptr<Optimizer> in_fp32() { return AdamW{.learning_rate = 0.01f}; }
const Kind plain{in_fp32}, eight_bits{in_8_bits};
const Kind wide{in_fp32, {.parameter = DType::bf16, .masters = DType::fp32}};
const Kind narrow{in_fp32, {.parameter = DType::bf16, .masters = DType::bf16}};

struct Place {
  int ranks;
  Strategy strategy = Strategy::fsdp;
  std::size_t replicas = 1;
  Checkpointing checkpointing = Checkpointing::blocking;
  MemorySpace states_in = MemorySpace::device;
};

Tensors on(const Kind& kind, const Place& place, const std::function<void(tensors::Net&)>& body) {
  Tensors values;
  std::mutex mutex;
  launch({.ranks = place.ranks, .timeout = std::chrono::seconds(60)}, [&](World& world) {
    const FullyShardOptions options{.strategy = place.strategy,
                                    .replicas = place.replicas,
                                    .precision = kind.precision,
                                    .checkpointing = place.checkpointing};
    tensors::Net net(world, options, sizes, kind.optimizer(), place.states_in);
    body(net);
    net.collect(values, mutex);
  });
  return values;
}

void load_latest(tensors::Net& net, const fs::path& directory) {
  Checkpointer checkpoints(net.model, {.directory = directory});
  checkpoints.load(checkpoints.latest()->path);
}

// Trains the steps [first, end), from the latest checkpoint where the first is not 0, and saves.
Tensors run(const Kind& kind, const Place& place, const fs::path& directory, int first, int end) {
  return on(kind, place, [&](tensors::Net& net) {
    if (first > 0) load_latest(net, directory);
    for (int step = first; step < end; ++step) net.step(step);
    Checkpointer checkpoints(net.model, {.directory = directory});
    checkpoints.save({.step = std::uint64_t(end)});
    checkpoints.wait();
  });
}

void check_same_bytes(const Kind& kind, const TemporaryFolder& folder, const std::vector<Place>& places) {
  const auto expected = files_in(folder / "1/step-00000002");
  for (const Place& place : places) {
    CAPTURE(place.ranks);
    const fs::path directory = folder / std::to_string(place.ranks);
    run(kind, place, directory, 0, 2);
    CHECK((files_in(directory / "step-00000002") == expected));
    fs::remove_all(directory);
  }
}

void check_goes_on(const Kind& kind, const std::vector<Place>& from, const std::vector<Place>& to) {
  const TemporaryFolder folder;
  const Tensors expected = run(kind, {.ranks = 1}, folder / "whole", 0, 4);
  for (const Place& first : from) {
    for (const Place& then : to) {
      const fs::path directory = folder / "parts";
      run(kind, first, directory, 0, 2);
      CHECK((run(kind, then, directory, 2, 4) == expected));
      fs::remove_all(directory);
    }
  }
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

TEST_CASE("codes_and_scales_are_stored_in_their_own_types_and_the_same_bytes_by_any_ranks") {
  const TemporaryFolder folder;
  run(eight_bits, {.ranks = 1}, folder / "1", 0, 2);
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
  check_same_bytes(eight_bits, folder,
                   {{2},
                    {3, Strategy::ddp},
                    {5, Strategy::zero2, 1, Checkpointing::background},
                    {4, Strategy::hsdp, 2},
                    {3, Strategy::fsdp, 1, Checkpointing::background, MemorySpace::host}});
}

TEST_CASE("bf16_masters_are_stored_in_their_own_type_and_the_same_bytes_by_any_ranks") {
  const TemporaryFolder folder;
  run(narrow, {.ranks = 1}, folder / "1", 0, 2);
  const CheckpointReader reader(folder / "1/step-00000002");
  CHECK(reader.find(TensorKind::model, "unit1.t257")->dtype == "BF16");
  CHECK(reader.find(TensorKind::optimizer, "m/unit1.t257")->dtype == "F32");
  check_same_bytes(narrow, folder, {{3, Strategy::ddp}, {5, Strategy::zero2, 1, Checkpointing::background}});
}

TEST_CASE("a_run_goes_on_bit_for_bit_on_other_ranks_and_strategies") {
  check_goes_on(eight_bits, tests::all_or_last<Place>({{1}, {3, Strategy::zero2}}),
                {{2}, {5, Strategy::ddp}, {3, Strategy::fsdp, 1, Checkpointing::blocking, MemorySpace::host}});
  check_goes_on(narrow, {{3, Strategy::zero2}}, {{2}});
}

TEST_CASE("states_of_another_optimizer_are_refused_by_name") {
  const auto message = [](const Kind& saves, const Kind& loads) {
    const TemporaryFolder folder;
    run(saves, {.ranks = 2}, folder.path(), 0, 1);
    return tests::error_text<std::exception>([&] { run(loads, {.ranks = 2}, folder.path(), 1, 2); });
  };
  const std::string into_8_bits = message(plain, eight_bits), into_fp32 = message(eight_bits, plain);
  CAPTURE(into_8_bits);
  CHECK(into_8_bits.find("optimizer tensor \"m/unit1.t257\" is F32, expected U8") != std::string::npos);
  CHECK(into_8_bits.find("states m, v, and the model's keeps m (u8), m_scale (fp32, one of 256 elements)") !=
        std::string::npos);
  CAPTURE(into_fp32);
  CHECK(into_fp32.find("optimizer tensor \"m/unit1.t257\" is U8, expected F32") != std::string::npos);
  CHECK(into_fp32.find("states m, m_scale, v, v_scale, and the model's keeps m, v") != std::string::npos);
}

// fp32 masters are rounded to nearest, bf16 ones widened; states go on as they are.
TEST_CASE("masters_of_one_type_set_out_from_a_checkpoint_of_the_other") {
  const auto check_converted = [](const Tensors& from, const Tensors& to, const auto& convert) {
    for (const auto& [name, bytes] : from) {
      CHECK((to.at(name) == (name.starts_with("master/") ? convert(bytes) : bytes)));
    }
  };
  for (const Place& place :
       tests::all_or_last<Place>({{1}, {3, Strategy::ddp}, {2, Strategy::fsdp, 1, Checkpointing::background}})) {
    CAPTURE(place.ranks);
    const TemporaryFolder folder;
    const auto load_from = [&](const Kind& kind, const char* name) {
      return on(kind, place, [&](tensors::Net& net) { load_latest(net, folder / name); });
    };
    const Tensors saved = run(wide, place, folder / "wide", 0, 2);
    check_converted(saved, load_from(narrow, "wide"), converted<bf16, float>);
    run(narrow, place, folder / "narrow", 0, 1);
    const Tensors before = run(narrow, place, folder / "narrow", 1, 2);
    check_converted(before, load_from(wide, "narrow"), converted<float, bf16>);
  }
}

TEST_CASE("files_of_weights_are_fp32_and_round_to_nearest_into_bf16_masters") {
  const TemporaryFolder folder;
  const Place of_wide{2, Strategy::fsdp, 1, Checkpointing::none}, of_narrow{3, Strategy::ddp, 1, Checkpointing::none};
  const fs::path file = folder / "weights.safetensors", again = folder / "again.safetensors";
  const Tensors dumped = on(wide, of_wide, [&](tensors::Net& net) {
    net.step(0);
    dump_weights(net.model, file);
  });
  const Tensors loaded = on(narrow, of_narrow, [&](tensors::Net& net) {
    load_weights(net.model, file);
    dump_weights(net.model, again);
  });
  const Tensors back = on(wide, of_wide, [&](tensors::Net& net) { load_weights(net.model, again); });
  for (const auto& [name, bytes] : dumped) {
    if (!name.starts_with("master/")) continue;
    const tensors::Bytes rounded = converted<bf16, float>(bytes);
    CHECK((loaded.at(name) == rounded));
    CHECK((back.at(name) == converted<float, bf16>(rounded)));
  }
}

}  // namespace typed_tensors_test
