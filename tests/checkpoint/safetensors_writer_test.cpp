// The safetensors writer: several writers make one file, which appears whole or not at all.
#include <doctest/doctest.h>

#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "temporary_folder.hpp"
#include "tessera/base/error.hpp"
#include "tessera/checkpoint/safetensors.hpp"

using namespace tessera;

namespace safetensors_writer_test {

const std::vector<TensorSpec> specs = {{.name = "first.weight", .shape = {5, 7}},
                                       {.name = "empty", .shape = {0, 3}},
                                       {.name = "half", .shape = {3}, .dtype = DType::bf16},
                                       {.name = "strange \"name\"\n", .shape = {}}};

std::vector<float> numbers(std::size_t count) {
  std::vector<float> result(count);
  for (std::size_t i = 0; i < count; ++i) result[i] = static_cast<float>(i) * 0.25f - 3.0f;
  return result;
}

void write_floats(SafetensorsWriter& writer, std::size_t tensor, std::size_t first, std::span<const float> values) {
  writer.write(tensor, Bytes(first * sizeof(float)), std::as_bytes(values));
}

TEST_CASE("what_is_written_in_pieces_by_several_writers_is_read_back") {
  const TemporaryFolder folder;
  const std::filesystem::path path = folder / "model.safetensors";
  const std::vector<float> values = numbers(35);
  {
    SafetensorsWriter creator(path, specs, {{"key", "välue"}});
    creator.create();
    std::vector<std::thread> ranks;
    for (std::size_t rank = 0; rank < 5; ++rank) {
      ranks.emplace_back([&, rank] {
        SafetensorsWriter writer(path, specs, {{"key", "välue"}});
        writer.open();
        write_floats(writer, 0, rank * 7, std::span(values).subspan(rank * 7, 7));
        writer.flush();
      });
    }
    for (std::thread& rank : ranks) rank.join();
    write_floats(creator, 3, 0, std::span(values).first(1));
    CHECK_FALSE(std::filesystem::exists(path));
    creator.finish();
    CHECK(std::filesystem::file_size(path) == creator.file_size().count());
  }
  const SafetensorsReader reader(path);
  CHECK(reader.metadata().at("key") == "välue");
  REQUIRE(reader.tensors().size() == specs.size());
  for (std::size_t i = 0; i < specs.size(); ++i) {
    CHECK(reader.tensors()[i].name == specs[i].name);
    CHECK(reader.tensors()[i].shape == specs[i].shape);
  }
  std::vector<float> read(35);
  reader.read_floats(reader.tensors()[0], 0, read);
  CHECK(read == values);
  CHECK(reader.tensors()[0].offset.count() % 64 == 0);
}

TEST_CASE("the_bytes_of_a_file_are_those_of_the_format") {
  const TemporaryFolder folder;
  const std::filesystem::path path = folder / "one.safetensors";
  SafetensorsWriter writer(path, {{.name = "w", .shape = {1, 2}}});
  writer.create();
  write_floats(writer, 0, 0, std::vector<float>{1.0f, 2.0f});
  writer.finish();
  const std::string bytes = bytes_in(path);
  const std::string header = R"({"w":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]}})";
  CHECK(bytes == std::string("\x38\0\0\0\0\0\0\0", 8) + header + std::string("\0\0\x80\x3f\0\0\0\x40", 8));
}

TEST_CASE("an_unfinished_file_leaves_nothing_behind") {
  const TemporaryFolder folder;
  {
    SafetensorsWriter writer(folder / "model.safetensors", specs);
    writer.create();
    CHECK(std::filesystem::exists(writer.partial_path()));
  }
  CHECK(folder.empty());
}

TEST_CASE("an_unfinished_file_leaves_the_one_before_it_alone") {
  const TemporaryFolder folder;
  const std::filesystem::path path = folder / "model.safetensors";
  {
    SafetensorsWriter writer(path, {{.name = "old", .shape = {1}}});
    writer.create();
    writer.finish();
  }
  {
    SafetensorsWriter writer(path, specs);
    writer.create();
  }
  CHECK(SafetensorsReader(path).find("old") != nullptr);
  {
    SafetensorsWriter writer(path, specs);
    writer.create();
    writer.finish();
  }
  CHECK(SafetensorsReader(path).find("old") == nullptr);
}

TEST_CASE("leftovers_of_a_crashed_writer_are_used_again") {
  const TemporaryFolder folder;
  SafetensorsWriter writer(folder / "model.safetensors", {{.name = "w", .shape = {2}}});
  std::ofstream(writer.partial_path()) << std::string(100'000, 'x');
  writer.create();
  writer.finish();
  CHECK(std::filesystem::file_size(writer.path()) == writer.file_size().count());
  std::vector<float> values(2, 1.0f);
  const SafetensorsReader reader(writer.path());
  reader.read_floats(reader.tensors()[0], 0, values);
  CHECK(values == std::vector<float>{0.0f, 0.0f});
}

TEST_CASE("what_was_planted_under_the_partial_name_is_not_written_to") {
  const TemporaryFolder folder;
  const auto diary = [&] { return std::filesystem::file_size(folder / "diary"); };
  std::ofstream(folder / "diary") << "dear";
  SafetensorsWriter writer(folder / "model.safetensors", specs);
  std::filesystem::create_symlink(folder / "diary", writer.partial_path());
  const std::string expected =
      writer.partial_path().string() + ": is a symbolic link, which nothing is written through: remove it";
  CHECK_THROWS_WITH_AS(writer.create(), expected.c_str(), DataError);
  CHECK_THROWS_WITH_AS(writer.open(), expected.c_str(), DataError);
  CHECK(diary() == 4);
  std::filesystem::remove(writer.partial_path());
  std::filesystem::create_hard_link(folder / "diary", writer.partial_path());
  writer.create();
  writer.finish();
  CHECK(diary() == 4);
}

TEST_CASE("two_creators_of_one_file_do_not_mix") {
  const TemporaryFolder folder;
  SafetensorsWriter one(folder / "model.safetensors", specs);
  SafetensorsWriter other(folder / "model.safetensors", specs);
  one.create();
  CHECK_THROWS_AS(other.create(), DataError);
  one.finish();
  CHECK_NOTHROW(other.create());
}

TEST_CASE("misuse_is_refused") {
  const TemporaryFolder folder;
  SafetensorsWriter writer(folder / "model.safetensors", specs);
  const std::vector<float> value(1);
  CHECK_THROWS_AS(write_floats(writer, 0, 0, value), UsageError);  // not open
  CHECK_THROWS_AS(writer.finish(), UsageError);
  writer.create();
  CHECK_THROWS_AS(write_floats(writer, 0, 35, value), UsageError);
  CHECK_NOTHROW(write_floats(writer, 0, 34, value));
  CHECK_THROWS_AS(write_floats(writer, 1, 0, value), UsageError);
  SafetensorsWriter second(folder / "model.safetensors", specs);
  second.open();
  CHECK_THROWS_AS(second.finish(), UsageError);
  CHECK_THROWS_AS(SafetensorsWriter("x", {{.name = "a", .shape = {}}, {.name = "a", .shape = {}}}), UsageError);
  CHECK_THROWS_AS(SafetensorsWriter("x", {{.name = "", .shape = {}}}), UsageError);
  CHECK_THROWS_AS(SafetensorsWriter("x", {{.name = "__metadata__", .shape = {}}}), UsageError);
  CHECK_THROWS_AS(SafetensorsWriter("x", {{.name = "\xff\xfe", .shape = {}}}), UsageError);
}

TEST_CASE("places_that_cannot_be_written_are_errors") {
  const TemporaryFolder folder;
  SafetensorsWriter missing(folder / "no/such/folder/model.safetensors", specs);
  CHECK_THROWS_AS(missing.create(), DataError);
  SafetensorsWriter directory(folder.path(), specs);
  CHECK_THROWS_AS(directory.create(), DataError);
  SafetensorsWriter unopened(folder / "model.safetensors", specs);
  CHECK_THROWS_AS(unopened.open(), DataError);
}

}  // namespace safetensors_writer_test
