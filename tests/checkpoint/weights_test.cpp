// Weights as one file: the same bytes whatever the strategy and the number of ranks, and an error on every rank or
// none.
#include "tessera/checkpoint/weights.hpp"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "../extent.hpp"
#include "checkpoint/channel.hpp"
#include "temporary_folder.hpp"
#include "tessera/base/error.hpp"
#include "tessera/checkpoint/safetensors.hpp"
#include "tessera/comm/run.hpp"
#include "tessera/optim/sgd.hpp"

using namespace tessera;

namespace weights_test {

const std::vector<int> rank_counts = tests::rank_counts({1, 2, 3, 5, 7});

// Parameters of odd sizes, one of them empty, some smaller than an alignment, some larger than a shard.
class Layer final : public Module {
 public:
  explicit Layer(std::size_t width)
      : weight_({width, 13}, Initial::normal(0.0f, 1.0f)), bias_({width}, Initial::uniform(-1.0f, 1.0f)) {}
  void visit(ModuleVisitor& visitor) override {
    visitor("weight", weight_);
    visitor("scale", scale_);
    visitor("nothing", nothing_);
    visitor("bias", bias_);
  }

 private:
  Parameter weight_;
  Parameter scale_{{}, Initial::constant(0.75f)};
  Parameter nothing_{{0, 5}, Initial::ones()};
  Parameter bias_;
};

struct Job {
  int ranks = 1;
  Strategy strategy = Strategy::fsdp;
  std::uint64_t seed = 1;
  std::size_t width = 97;  // of the second layer
};

void with_model(const Job& job, const std::function<void(FullyShard&)>& body) {
  launch({.ranks = job.ranks}, [&](World& world) {
    Layer first(31);
    Layer second(job.width);
    FullyShard model(world, {.strategy = job.strategy, .seed = job.seed});
    model.add(first, "first");
    model.add(second, "second");
    model.finalize(Sgd{});
    body(model);
  });
}

// The messages with which `work` fails on each rank.
std::vector<std::string> failures(const Job& job, const std::function<void(FullyShard&)>& work) {
  std::mutex mutex;
  std::vector<std::string> messages;
  with_model(job, [&](FullyShard& model) {
    try {
      work(model);
    } catch (const DataError& error) {
      const std::lock_guard lock(mutex);
      messages.emplace_back(error.what());
    }
  });
  return messages;
}

void write_file(const std::filesystem::path& path, const std::vector<TensorSpec>& specs) {
  SafetensorsWriter writer(path, specs);
  writer.create();
  writer.finish();
}

const std::vector<TensorSpec> right_specs = {
    {.name = "first.weight", .shape = {31, 13}},  {.name = "first.scale", .shape = {}},
    {.name = "first.nothing", .shape = {0, 5}},   {.name = "first.bias", .shape = {31}},
    {.name = "second.weight", .shape = {97, 13}}, {.name = "second.scale", .shape = {}},
    {.name = "second.nothing", .shape = {0, 5}},  {.name = "second.bias", .shape = {97}}};

TEST_CASE("dumped_weights_are_the_initial_values_whatever_the_strategy_and_ranks") {
  const TemporaryFolder folder;
  std::set<std::string> contents;
  for (const int ranks : rank_counts) {
    for (const Strategy strategy : {Strategy::fsdp, Strategy::ddp}) {
      with_model({.ranks = ranks, .strategy = strategy},
                 [&](FullyShard& model) { dump_weights(model, folder / "weights"); });
      contents.insert(bytes_in(folder / "weights"));
    }
  }
  CHECK(contents.size() == 1);
  const SafetensorsReader reader(folder / "weights");
  REQUIRE(reader.tensors().size() == right_specs.size());
  for (std::size_t i = 0; i < right_specs.size(); ++i) {
    CHECK(reader.tensors()[i].name == right_specs[i].name);
    CHECK(reader.tensors()[i].shape == right_specs[i].shape);
  }
  std::vector<float> expected(97 * 13);
  Initial::normal(0.0f, 1.0f).fill(expected, 1, "second.weight", 0);
  std::vector<float> stored(97 * 13);
  reader.read_floats(*reader.find("second.weight"), 0, stored);
  CHECK(stored == expected);
}

TEST_CASE("loaded_weights_are_the_dumped_ones_on_any_number_of_ranks") {
  const TemporaryFolder folder;
  with_model({.ranks = 3, .seed = 42}, [&](FullyShard& model) { dump_weights(model, folder / "source"); });
  for (const int ranks : rank_counts) {
    for (const Strategy strategy : {Strategy::fsdp, Strategy::ddp}) {
      with_model({.ranks = ranks, .strategy = strategy}, [&](FullyShard& model) {
        load_weights(model, folder / "source");
        dump_weights(model, folder / "copy");
      });
      CHECK(bytes_in(folder / "copy") == bytes_in(folder / "source"));
    }
  }
}

TEST_CASE("windows_see_loaded_weights_at_once") {
  const TemporaryFolder folder;
  with_model({.seed = 42}, [&](FullyShard& model) { dump_weights(model, folder / "source"); });
  std::vector<float> expected(31);
  Initial::uniform(-1.0f, 1.0f).fill(expected, 42, "first.bias", 0);
  for (const Strategy strategy : {Strategy::fsdp, Strategy::ddp}) {
    launch({.ranks = 3}, [&](World& world) {
      Parameter bias({31}, Initial::zeros());
      const NamedParameter named[] = {{"bias", &bias}};
      FullyShard model(world, {.strategy = strategy});
      Unit& unit = model.add_unit("first", named);
      model.finalize(Sgd{});
      const SafetensorsReader source(folder / "source");
      SafetensorsWriter writer(folder / "bias", {{.name = "first.bias", .shape = {31}}});
      if (world.rank() == 0) {
        std::vector<float> values(31);
        source.read_floats(*source.find("first.bias"), 0, values);
        writer.create();
        writer.write(0, Bytes(0), std::as_bytes(std::span(values)));
        writer.finish();
      }
      world.barrier("written");
      load_weights(model, folder / "bias");
      model.within(unit, plan::WindowKind::evaluate, [&](Window& window) {
        window.stream().synchronize();
        const std::span<const float> seen = window.parameter(bias);
        CHECK(std::vector<float>(seen.begin(), seen.end()) == expected);
      });
      model.synchronize();
    });
  }
}

TEST_CASE("half_precision_weights_are_widened") {
  const TemporaryFolder folder;
  std::vector<TensorSpec> specs = right_specs;
  for (TensorSpec& spec : specs) spec.dtype = DType::bf16;
  write_file(folder / "half", specs);  // zeros
  with_model({.ranks = 2}, [&](FullyShard& model) {
    load_weights(model, folder / "half");
    for (const ParameterPiece& piece : model.pieces(model.unit(0))) {
      for (const float value : piece.values) CHECK(value == 0.0f);
    }
  });
}

TEST_CASE("everything_that_does_not_fit_is_one_error_on_every_rank") {
  const TemporaryFolder folder;
  std::vector<TensorSpec> specs = right_specs;
  specs[0].shape = {13, 31};
  specs[3].name = "first.bios";
  specs.push_back({.name = "third.weight", .shape = {1}});
  write_file(folder / "wrong", specs);
  const std::string expected =
      (folder / "wrong").string() +
      R"(: does not fit the model: tensor "first.weight" is [13, 31], the model's is [31, 13]; )"
      R"(tensor "first.bias" [31] is missing; tensor "first.bios" is not in the model; )"
      R"(tensor "third.weight" is not in the model)";
  for (const Strategy strategy : {Strategy::fsdp, Strategy::ddp}) {
    const std::vector<std::string> messages =
        failures({.ranks = 3, .strategy = strategy}, [&](FullyShard& model) { load_weights(model, folder / "wrong"); });
    CHECK(messages == std::vector<std::string>(3, expected));
  }
}

TEST_CASE("of_a_thousand_differences_an_error_shows_the_first_and_counts_the_others") {
  const TemporaryFolder folder;
  std::vector<TensorSpec> specs = right_specs;
  for (int i = 0; i < 1000; ++i) specs.push_back({.name = fmt::format("other.{}", i), .shape = {1}});
  write_file(folder / "other", specs);
  for (const std::string& message :
       failures({.ranks = 2}, [&](FullyShard& model) { load_weights(model, folder / "other"); })) {
    CHECK(message.ends_with("tensor \"other.19\" is not in the model; and 980 more"));
  }
}

TEST_CASE("tensors_under_other_names_load_through_a_map_and_through_aliases") {
  const TemporaryFolder folder;
  with_model({.seed = 42}, [&](FullyShard& model) { dump_weights(model, folder / "source"); });
  const SafetensorsReader source(folder / "source");
  // Three names are others; the map leads to one of them by an alias, and to another at once; one is an alias alone.
  std::vector<TensorSpec> specs = right_specs;
  specs[0].name = "transformer.a";
  specs[3].name = "transformer.b";
  const std::map<std::string, std::string> metadata = {{"second.bias", "transformer.b2"}, {"tied", "transformer.a"}};
  specs[7].name = "transformer.b2";
  {
    SafetensorsWriter writer(folder / "renamed", specs, metadata);
    writer.create();
    for (std::size_t i = 0; i < specs.size(); ++i) {
      std::vector<std::byte> bytes(source.tensors()[i].size.count());
      source.read(source.tensors()[i], Bytes(0), bytes);
      writer.write(i, Bytes(0), bytes);
    }
    writer.finish();
  }
  std::ofstream(folder / "map.json") << R"({"first.weight": "tied", "first.bias": "transformer.b"})";
  for (const int ranks : rank_counts) {
    with_model({.ranks = ranks}, [&](FullyShard& model) {
      load_weights(model, folder / "renamed", {.names = read_name_map(folder / "map.json")});
      dump_weights(model, folder / "copy");
    });
    CHECK(bytes_in(folder / "copy") == bytes_in(folder / "source"));
  }
}

TEST_CASE("everything_that_a_name_map_gets_wrong_is_one_error") {
  const TemporaryFolder folder;
  with_model({}, [&](FullyShard& model) { dump_weights(model, folder / "file"); });
  const LoadWeightsOptions options = {
      .names = {{"first.bias", "first.bios"}, {"first.weight", "second.weight"}, {"third.weight", "first.weight"}}};
  const std::string expected =
      (folder / "file").string() +
      R"(: does not fit the model: tensor "first.weight" (in the file "second.weight") is [97, 13], the model's is [31, 13]; )"
      R"(tensor "first.bias" (in the file "first.bios") [31] is missing; tensor "first.weight" is not in the model; )"
      R"(tensor "first.bias" is not in the model; )"
      R"(the names map "third.weight" to "first.weight", and the model has no such tensor)";
  CHECK(failures({.ranks = 2}, [&](FullyShard& model) { load_weights(model, folder / "file", options); }) ==
        std::vector<std::string>(2, expected));
}

TEST_CASE("a_name_map_that_is_not_one_is_refused_with_the_place") {
  const TemporaryFolder folder;
  const auto complaint = [&](const std::string& text) {
    std::ofstream(folder / "map") << text;
    try {
      read_name_map(folder / "map");
    } catch (const DataError& error) {
      return std::string(error.what()).substr((folder / "map").string().size());
    }
    return std::string("accepted");
  };
  CHECK(complaint("{}") == "accepted");
  CHECK(complaint("") == ": is not JSON: wrong at its byte 1");
  CHECK(complaint("[]") == ": expected an object of texts, found a list");
  CHECK(complaint(R"({"a": 7})") == R"(: "a": expected a text, found a number)");
  CHECK(complaint(R"({"a": "b", "a": "c"})") == R"(: "a": "a" is given twice)");
  CHECK_THROWS_AS(read_name_map(folder / "none"), DataError);
}

TEST_CASE("a_file_that_does_not_fit_changes_nothing") {
  const TemporaryFolder folder;
  with_model({}, [&](FullyShard& model) { dump_weights(model, folder / "before"); });
  write_file(folder / "wrong", {{.name = "first.weight", .shape = {31, 13}}});
  failures({.ranks = 2}, [&](FullyShard& model) {
    try {
      load_weights(model, folder / "wrong");
    } catch (const DataError&) {
    }
    dump_weights(model, folder / "after");
  });
  CHECK(bytes_in(folder / "after") == bytes_in(folder / "before"));
}

TEST_CASE("what_a_file_says_of_its_model_must_be_what_the_one_that_loads_it_says_of_itself") {
  const TemporaryFolder folder;
  with_model({}, [&](FullyShard& model) {
    dump_weights(model, folder / "said", {{"heads", "4"}, {"data", "a"}});
    dump_weights(model, folder / "unsaid");
  });
  const auto complaint = [&](const std::string& file, const std::string& heads) {
    return failures({.ranks = 2}, [&](FullyShard& model) {
      load_weights(model, folder / file, {.metadata = {{"heads", heads}}});
    });
  };
  CHECK(complaint("said", "4").empty());
  CHECK(complaint("unsaid", "2").empty());
  const std::vector<std::string> found = complaint("said", "2");
  REQUIRE(found.size() == 2);
  CHECK_MESSAGE(found[0].find("its \"heads\" is \"4\", the model's is 2") != std::string::npos, found[0]);
}

TEST_CASE("ranks_that_would_write_different_headers_are_told_and_no_file_is_made") {
  const TemporaryFolder folder;
  with_model({.ranks = 3}, [&](FullyShard& model) {
    const std::string heads = model.world().rank() == 1 ? "16" : "4";
    CHECK_THROWS_WITH_AS(dump_weights(model, folder / "file", {{"heads", heads}}),
                         doctest::Contains("the metadata of dump_weights(), by its hash, must be equal: ranks 0, 2"),
                         CommunicationError);
    CHECK_FALSE(std::filesystem::exists(folder / "file"));
  });
}

TEST_CASE("ranks_that_load_different_files_are_told") {
  const TemporaryFolder folder;
  with_model({}, [&](FullyShard& model) { dump_weights(model, folder / "before"); });
  std::filesystem::copy_file(folder / "before", folder / "other");
  std::fstream(folder / "other").seekp(-1, std::ios::end).put('?');
  std::string said;
  try {
    with_model({.ranks = 3}, [&](FullyShard& model) {
      load_weights(model, folder / (model.world().rank() == 1 ? "other" : "before"));
    });
  } catch (const CommunicationError& error) {
    said = error.what();
  }
  CHECK_MESSAGE(said.find("the file of load_weights()") != std::string::npos, said);
}

TEST_CASE("a_missing_file_is_an_error_on_every_rank") {
  const TemporaryFolder folder;
  const std::vector<std::string> messages =
      failures({.ranks = 3}, [&](FullyShard& model) { load_weights(model, folder / "none"); });
  REQUIRE(messages.size() == 3);
  for (const std::string& message : messages) CHECK(message.rfind((folder / "none").string(), 0) == 0);
}

TEST_CASE("a_dump_that_fails_anywhere_fails_everywhere_and_leaves_nothing") {
  const TemporaryFolder folder;
  const std::vector<std::string> creation =
      failures({.ranks = 3}, [&](FullyShard& model) { dump_weights(model, folder / "no/folder/weights"); });
  CHECK(creation.size() == 3);
  const std::vector<std::string> writing = failures({.ranks = 3}, [&](FullyShard& model) {
    // Rank 2 looks for the file in another place than the one where rank 0 makes it.
    dump_weights(model, folder / (model.world().rank() == 2 ? "elsewhere" : "weights"));
  });
  REQUIRE(writing.size() == 3);
  for (const std::string& message : writing) {
    CHECK(message.rfind((folder / "elsewhere.partial").string() + ": cannot be opened", 0) == 0);
  }
  CHECK(folder.empty());
}

TEST_CASE("a_rank_that_makes_progress_is_waited_for_one_that_fails_is_named_and_one_that_stands_still_is_not") {
  const auto seconds = [](double length) { std::this_thread::sleep_for(std::chrono::duration<double>(length)); };
  launch({.ranks = 3, .timeout = std::chrono::seconds(2)}, [&](World& world) {
    checkpoint::run_together(world, "progress", [&](const checkpoint::Pause& pause) {
      for (int step = 0; step < 10 * world.rank(); ++step) {
        seconds(0.2);
        pause();
      }
    });
    std::string message;
    try {
      checkpoint::run_together(world, "failure", [&](const checkpoint::Pause& pause) {
        for (int step = 0; step < 20; ++step) {
          seconds(0.1);
          if (world.rank() == 1 && step == 12) throw std::runtime_error("out of luck");
          pause();
        }
      });
    } catch (const DataError& error) {
      CHECK(world.rank() != 1);
      message = error.what();
    } catch (const std::runtime_error& error) {
      CHECK(world.rank() == 1);
      message = error.what();
    }
    CHECK(message == (world.rank() == 1 ? "out of luck" : "out of luck (on rank 1)"));
    checkpoint::run_together(world, "still in step", [](const checkpoint::Pause&) {});
  });
  const auto stands_still = [&] {
    launch({.ranks = 2, .timeout = std::chrono::seconds(1)}, [&](World& world) {
      checkpoint::run_together(world, "nothing",
                               [&](const checkpoint::Pause&) { seconds(world.rank() == 1 ? 2.5 : 0.0); });
    });
  };
  CHECK_THROWS_AS(stands_still(), Error);
}

}  // namespace weights_test
