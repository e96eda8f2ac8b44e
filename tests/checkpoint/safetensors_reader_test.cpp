// The safetensors reader against files that are good, damaged and hostile.
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <cstdint>
#include <cstring>
#include <fstream>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "temporary_folder.hpp"
#include "tessera/base/error.hpp"
#include "tessera/base/half.hpp"
#include "tessera/checkpoint/safetensors.hpp"

using namespace tessera;

namespace safetensors_reader_test {

std::string with_length(std::uint64_t length, const std::string& rest) {
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &length, 8);
  return bytes + rest;
}

std::string file_of(const std::string& header, std::size_t data_bytes) {
  return with_length(header.size(), header + std::string(data_bytes, '\0'));
}

template <typename T>
std::string bytes_of(const std::vector<T>& values) {
  std::string bytes(values.size() * sizeof(T), '\0');
  if (!values.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

class Sandbox {
 public:
  SafetensorsReader open(const std::string& bytes) const {
    std::ofstream(path_, std::ios::binary) << bytes;
    return SafetensorsReader(path_);
  }

  // Returns what the reader says about these bytes, without the path that it begins with.
  std::string complaint(const std::string& bytes) const {
    try {
      open(bytes);
    } catch (const DataError& error) {
      const std::string message = error.what();
      REQUIRE(message.rfind(path_.string() + ": ", 0) == 0);
      CHECK(message.find('\n') == std::string::npos);
      return message.substr(path_.string().size() + 2);
    }
    return "accepted";
  }

  const std::filesystem::path& path() const { return path_; }

 private:
  TemporaryFolder folder_;
  std::filesystem::path path_ = folder_ / "model.safetensors";
};

std::string entry(const std::string& name, const std::string& dtype, const std::string& shape,
                  const std::string& offsets) {
  return fmt::format(R"("{}":{{"dtype":"{}","shape":{},"data_offsets":{}}})", name, dtype, shape, offsets);
}

// The entries as a header.
template <typename... Entries>
std::string header_of(const Entries&... entries) {
  std::string list;
  ((list += list.empty() ? entries : "," + entries), ...);
  return fmt::format("{{{}}}", list);
}

TEST_CASE("a_good_file_gives_its_tensors_and_metadata") {
  const Sandbox sandbox;
  const std::string header =
      header_of(std::string(R"("__metadata__":{"format":"pt"})"), entry("b", "F32", "[2,3]", "[4,28]"),
                entry("a", "U8", "[4]", "[0,4]"), entry("scalar", "F64", "[]", "[28,36]"),
                entry("nothing", "F32", "[0,7]", "[36,36]")) +
      "   ";
  const std::vector<float> b = {1.0f, 2.0f, 3.0f, 4.0f, 5.0f, -6.5f};
  const SafetensorsReader reader =
      sandbox.open(with_length(header.size(), header + "wxyz" + bytes_of(b) + bytes_of(std::vector<double>{0.5})));
  CHECK(reader.tensors().size() == 4);
  CHECK(reader.metadata().at("format") == "pt");
  REQUIRE(reader.find("b") != nullptr);
  CHECK(reader.find("b")->shape == Shape{2, 3});
  CHECK(reader.find("c") == nullptr);
  std::vector<float> part(3);
  reader.read_floats(*reader.find("b"), 3, part);
  CHECK(part == std::vector<float>{4.0f, 5.0f, -6.5f});
  std::vector<std::byte> raw(2);
  reader.read(*reader.find("a"), Bytes(1), raw);
  CHECK(raw == std::vector<std::byte>{std::byte{'x'}, std::byte{'y'}});
  reader.read_floats(*reader.find("nothing"), 0, {});
  CHECK_THROWS_AS(reader.read(*reader.find("a"), Bytes(3), raw), UsageError);
  CHECK_THROWS_AS(reader.read(*reader.find("a"), Bytes(std::numeric_limits<std::uint64_t>::max()), raw), UsageError);
  CHECK_THROWS_AS(reader.read_floats(*reader.find("a"), 0, part), DataError);
}

TEST_CASE("an_empty_model_is_a_file") {
  const Sandbox sandbox;
  CHECK(sandbox.open(file_of("{}", 0)).tensors().empty());
}

TEST_CASE("half_precision_tensors_are_widened_exactly_over_any_range") {
  const Sandbox sandbox;
  constexpr std::size_t count = 20011;  // more than the reader's pieces
  std::vector<bf16> brain(count);
  std::vector<fp16> half(count);
  for (std::size_t i = 0; i < count; ++i) {
    brain[i] = bf16(static_cast<float>(i) - 9000.0f);
    half[i] = fp16(static_cast<float>(i % 2048) / 64.0f);
  }
  const std::string header =
      header_of(entry("brain", "BF16", "[20011]", "[0,40022]"), entry("half", "F16", "[20011]", "[40022,80044]"));
  const SafetensorsReader reader = sandbox.open(with_length(header.size(), header + bytes_of(brain) + bytes_of(half)));
  for (const std::size_t first : std::vector<std::size_t>{0, 1, 8191, 20011}) {
    std::vector<float> values(count - first);
    reader.read_floats(*reader.find("brain"), first, values);
    for (std::size_t i = 0; i < values.size(); ++i) REQUIRE(values[i] == static_cast<float>(brain[first + i]));
    reader.read_floats(*reader.find("half"), first, values);
    for (std::size_t i = 0; i < values.size(); ++i) REQUIRE(values[i] == static_cast<float>(half[first + i]));
  }
  std::vector<float> one(1);
  // Their places in bytes are 0 in 64 bits.
  CHECK_THROWS_AS(reader.read_floats(*reader.find("brain"), std::size_t{1} << 63, one), UsageError);
}

TEST_CASE("what_is_not_a_safetensors_file_is_refused") {
  const Sandbox sandbox;
  CHECK(sandbox.complaint("") == "is too short to be a safetensors file");
  CHECK(sandbox.complaint("1234567") == "is too short to be a safetensors file");
  CHECK(sandbox.complaint(with_length(1000, "{}")).find("its header would be 1000 bytes long, in a file of 10") !=
        std::string::npos);
  CHECK(sandbox.complaint(with_length(std::numeric_limits<std::uint64_t>::max(), "{}")).find("damaged") !=
        std::string::npos);
  CHECK(sandbox.complaint(std::string("PK\3\4 a zip file with some content")).find("damaged") != std::string::npos);
  CHECK_THROWS_WITH_AS(SafetensorsReader("/no/such/file"), "/no/such/file: cannot be opened: No such file or directory",
                       DataError);
  CHECK_THROWS_WITH_AS(SafetensorsReader("/dev/null"), "/dev/null: is not a regular file", DataError);
  const TemporaryFolder folder;
  CHECK_THROWS_AS(SafetensorsReader(folder.path()), DataError);
  REQUIRE(::mkfifo((folder / "pipe").c_str(), 0600) == 0);
  CHECK_THROWS_AS(SafetensorsReader(folder / "pipe"), DataError);
}

TEST_CASE("a_header_beyond_the_limit_is_refused_before_it_is_read") {
  const Sandbox sandbox;
  std::ofstream(sandbox.path(), std::ios::binary) << with_length(100'000'001, "");
  std::filesystem::resize_file(sandbox.path(), 100'000'100);  // sparse
  const std::string expected =
      sandbox.path().string() +
      ": is not a safetensors file, or damaged: its header would be 100000001 bytes long, in a file "
      "of 100000100";
  CHECK_THROWS_WITH_AS(SafetensorsReader(sandbox.path()), expected.c_str(), DataError);
}

TEST_CASE("headers_that_are_not_the_json_they_must_be_are_refused") {
  const Sandbox sandbox;
  const auto complaint = [&](const std::string& header) { return sandbox.complaint(file_of(header, 4)); };
  CHECK(complaint(R"({"a":)") == "the header is not JSON: wrong at its byte 6");
  CHECK(complaint("") == "the header is not JSON: wrong at its byte 1");
  CHECK(complaint("{} {}").find("not JSON") != std::string::npos);
  CHECK(complaint("[]") == "the header: expected an object, found a list");
  CHECK(complaint("7") == "the header: expected an object, found a number");
  CHECK(complaint(R"({"a":7})") == R"(tensor "a": expected an object, found a number)");
  CHECK(complaint(R"({"a":{}})") == R"(tensor "a": needs dtype, shape and data_offsets)");
  CHECK(complaint(R"({"a":{"dtype":"F32","shape":[1]}})") == R"(tensor "a": needs dtype, shape and data_offsets)");
  CHECK(complaint(R"({"a":{"dtype":7}})").find("found a number") != std::string::npos);
  CHECK(complaint(R"({"a":{"colour":"red"}})") == R"(tensor "a": has an unknown field "colour")");
  CHECK(complaint(R"({"a":{"dtype":"F32","dtype":"F32"}})") == R"(tensor "a": dtype is given twice)");
  CHECK(complaint(R"({"__metadata__":{"x":7}})") == "__metadata__: expected a text, found a number");
  CHECK(complaint(R"({"__metadata__":{"x":{"y":"z"}}})") == "__metadata__: expected a text, found an object");
  CHECK(complaint(R"({"__metadata__":{"x":"1","x":"2"}})") == R"(__metadata__: "x" is given twice)");
  CHECK(complaint(header_of(entry("a", "F32", "[-1]", "[0,4]"))).find("found a negative number") != std::string::npos);
  CHECK(complaint(header_of(entry("a", "F32", "[1.0]", "[0,4]"))).find("found a fraction") != std::string::npos);
  CHECK(complaint(header_of(entry("a", "F32", "[99999999999999999999]", "[0,4]"))).find("too large") !=
        std::string::npos);
  CHECK(complaint(header_of(entry("a", "F32", "[[1]]", "[0,4]"))).find("found a list") != std::string::npos);
  CHECK(complaint(header_of(entry("a", "F32", "[true]", "[0,4]"))).find("found a boolean") != std::string::npos);
  CHECK(complaint(header_of(entry("a", "F32", "null", "[0,4]"))).find("found null") != std::string::npos);
  CHECK(complaint(header_of(entry("a", "F32", "[1]", "[0]"))) == R"(tensor "a": data_offsets must be two numbers)");
  CHECK(complaint(header_of(entry("a", "F32", "[1]", "[0,2,4]"))) == R"(tensor "a": data_offsets must be two numbers)");
  CHECK(complaint("{\"\xff\":{}}").find("not JSON") != std::string::npos);
}

TEST_CASE("names_given_twice_are_refused") {
  const Sandbox sandbox;
  const std::string twice = header_of(entry("a", "F32", "[1]", "[0,4]"), entry("a", "F32", "[1]", "[4,8]"));
  CHECK(sandbox.complaint(file_of(twice, 8)) == R"(tensor "a": is given twice)");
}

TEST_CASE("deep_nesting_is_refused_without_a_deep_stack") {
  const Sandbox sandbox;
  CHECK(sandbox.complaint(file_of(std::string(3'000'000, '['), 0)).find("found a list") != std::string::npos);
  std::string nested;
  for (int i = 0; i < 200'000; ++i) nested += R"({"a":)";
  CHECK(sandbox.complaint(file_of(nested, 0)).find("unknown field") != std::string::npos);
  std::string dimensions = "[1";
  for (int i = 0; i < 200'000; ++i) dimensions += ",1";
  dimensions += "]";
  CHECK(sandbox.complaint(file_of(header_of(entry("a", "F32", dimensions, "[0,4]")), 4)).find("too many dimensions") !=
        std::string::npos);
}

TEST_CASE("shapes_dtypes_and_bytes_must_agree") {
  const Sandbox sandbox;
  const auto complaint = [&](const std::string& tensor) { return sandbox.complaint(file_of(header_of(tensor), 24)); };
  CHECK(complaint(entry("a", "F32", "[2,3]", "[0,24]")) == "accepted");
  CHECK(complaint(entry("a", "F32", "[2,2]", "[0,24]")) ==
        R"(tensor "a": shape [2, 2] of F32 needs 16 bytes, but data_offsets span 24)");
  CHECK(complaint(entry("a", "F99", "[2,3]", "[0,24]")) == R"(tensor "a": unknown dtype "F99")");
  CHECK(complaint(entry("a", "F32", "[4611686018427387904]", "[0,0]")).find("more than 2^64") != std::string::npos);
  CHECK(complaint(entry("a", "F32", "[4294967296,4294967296]", "[0,24]")).find("more than 2^64") != std::string::npos);
  CHECK(complaint(entry("a", "F32", "[6]", "[24,0]")) == R"(tensor "a": data_offsets [24, 0] run backwards)");
}

TEST_CASE("ranges_lie_one_after_the_other_within_the_file") {
  const Sandbox sandbox;
  const auto complaint = [&](const std::string& second, std::size_t data_bytes) {
    return sandbox.complaint(file_of(header_of(entry("a", "F32", "[2]", "[0,8]"), second), data_bytes));
  };
  CHECK(complaint(entry("b", "F32", "[1]", "[8,12]"), 12) == "accepted");
  CHECK(complaint(entry("b", "F32", "[1]", "[4,8]"), 8) ==
        R"(tensor "b": begins at byte 4 of the data, before 8, where the tensor before it ends)");
  CHECK(complaint(entry("b", "F32", "[1]", "[12,16]"), 16) ==
        R"(tensor "b": begins at byte 12 of the data, after 8, where the tensor before it ends)");
  CHECK(complaint(entry("b", "F32", "[1]", "[8,12]"), 11) ==
        R"(tensor "b": ends at byte 12 of the data, but the file has 11: cut off?)");
  CHECK(complaint(entry("b", "F32", "[1]", "[8,12]"), 13) == "1 bytes behind the last tensor belong to none");
  CHECK(complaint(entry("b", "F32", "[4611686018427387903]", "[8,18446744073709551620]"), 12) != "accepted");
  CHECK(complaint(entry("b", "U8", "[18446744073709551607]", "[8,18446744073709551615]"), 12) ==
        R"(tensor "b": ends at byte 18446744073709551615 of the data, but the file has 12: cut off?)");
}

TEST_CASE("hostile_names_are_shown_short_and_escaped") {
  const Sandbox sandbox;
  const std::string name = "\\u001b[2J\\n" + std::string(5000, 'n');
  const std::string message = sandbox.complaint(file_of(fmt::format(R"({{"{}":7}})", name), 0));
  CHECK(message.size() < 250);
  CHECK(message.find('\x1b') == std::string::npos);
}

TEST_CASE("a_good_file_cut_off_anywhere_is_refused") {
  const Sandbox sandbox;
  const std::string whole = file_of(header_of(entry("a", "F32", "[2,3]", "[0,24]")), 24);
  for (std::size_t length = 0; length < whole.size(); ++length)
    CHECK(sandbox.complaint(whole.substr(0, length)) != "accepted");
  CHECK(sandbox.complaint(whole) == "accepted");
}

TEST_CASE("damaged_bytes_end_in_a_file_or_in_an_error") {
  const Sandbox sandbox;
  const std::string whole = file_of(header_of(entry("a", "F32", "[2,3]", "[0,24]"), entry("b", "BF16", "[]", "[24,26]"),
                                              std::string(R"("__metadata__":{"k":"v"})")),
                                    26);
  std::mt19937 random(3);
  for (int round = 0; round < 2000; ++round) {
    std::string damaged = whole;
    for (int change = 0; change < 1 + round % 4; ++change) {
      damaged[random() % damaged.size()] = static_cast<char>(random() % 256);
    }
    CHECK_NOTHROW(sandbox.complaint(damaged));
  }
}

}  // namespace safetensors_reader_test
