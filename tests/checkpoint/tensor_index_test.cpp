// Splitting tensors over files, and the index that says where they are.
#include "tessera/checkpoint/tensor_index.hpp"

#include <doctest/doctest.h>

#include <limits>
#include <string>
#include <vector>

#include "../error_text.hpp"
#include "tessera/base/error.hpp"

using namespace tessera;

namespace tensor_index_test {

std::string complaint(const std::string& text) {
  return tests::error_text<DataError>([&] { parse_tensor_index(text, "x"); }, "accepted");
}

TEST_CASE("files_hold_as_many_tensors_as_fit_and_a_tensor_is_never_split") {
  using Begins = std::vector<std::size_t>;
  const auto split = [](const std::vector<std::uint64_t>& sizes) {
    std::vector<Bytes> bytes;
    for (const std::uint64_t size : sizes) bytes.emplace_back(size);
    return split_tensors(bytes, Bytes(10));
  };
  CHECK(split({}) == Begins{0});
  CHECK(split({0}) == Begins{0});
  CHECK(split({4, 6}) == Begins{0});
  CHECK(split({4, 7}) == Begins{0, 1});
  CHECK(split({11}) == Begins{0});
  CHECK(split({11, 0, 10}) == Begins{0, 1});
  CHECK(split({1, 11, 1, 9, 1}) == Begins{0, 1, 2, 4});
  CHECK(split({1, std::numeric_limits<std::uint64_t>::max(), 1}) == Begins{0, 1, 2});
}

TEST_CASE("files_are_named_as_the_hugging_face_libraries_name_them") {
  CHECK(tensor_file_name("model") == "model.safetensors");
  CHECK(tensor_file_name("model", 0, 3) == "model-00001-of-00003.safetensors");
  CHECK(tensor_index_name("model") == "model.safetensors.index.json");
  CHECK_THROWS_AS(tensor_file_name("model", 3, 3), UsageError);
  CHECK_THROWS_AS(tensor_file_name("model", 0, 100'000), UsageError);
}

TEST_CASE("an_index_comes_back_as_it_was") {
  const TensorIndex index{.total_size = Bytes(12), .files = {{"a", "1.safetensors"}, {"naïve \"b\"", "2.safetensors"}}};
  CHECK(parse_tensor_index(compose(index), "x") == index);
  CHECK(parse_tensor_index(compose(TensorIndex{}), "x") == TensorIndex{});
  CHECK_THROWS_AS(compose(TensorIndex{.files = {{"\xff", "a"}}}), UsageError);
}

TEST_CASE("indices_that_are_not_the_json_they_must_be_are_refused") {
  CHECK(complaint(R"({"metadata":{"total_size":1,"more":[{}]},"weight_map":{}})") == "accepted");
  CHECK(complaint(R"({"weight_map":{}})") == R"(x: has no member "metadata")");
  CHECK(complaint(R"({"metadata":{"total_size":-1},"weight_map":{}})").find("found a negative number") !=
        std::string::npos);
  CHECK(complaint(R"({"metadata":{"total_size":1},"weight_map":{"a":"b","a":"c"}})") ==
        R"(x: weight_map."a": "a" is given twice)");
  CHECK(complaint(R"({"metadata":{"total_size":1},"weight_map":{"a":["b"]}})") ==
        R"(x: weight_map."a": expected a text, found a list)");
  CHECK(complaint(R"({"metadata":{"total_size":1},"weight_map":[]})") ==
        "x: weight_map: expected an object of texts, found a list");
}

}  // namespace tensor_index_test
