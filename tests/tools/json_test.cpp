// JSON values: what braces mean, what is written, what is read back, and what is refused.
#include "json/json.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <string>

namespace json_test {

using tools::Json;
using tools::JsonError;

TEST_CASE("braces_make_objects_of_named_entries_and_arrays_of_all_others") {
  CHECK(Json{{"a", 1}, {"b", "x"}}.is_object());
  CHECK(Json{{"a", 1}, {2, 1}}.is_array());
  CHECK(Json{1, 2, 3}.size() == 3);
  CHECK(Json{{"y", {{"label", "GiB"}}}}.at("y").at("label").text() == "GiB");
}

TEST_CASE("what_is_written_is_read_back") {
  Json object = {{"b", 1}, {"a", -2}, {"c", 0.1}, {"d", true}, {"e", nullptr}, {"f", "\"\n"}};
  object["list"].push_back(std::numeric_limits<std::uint64_t>::max());
  object["list"].push_back(Json::object());
  CHECK(object.dump() == R"({"b":1,"a":-2,"c":0.1,"d":true,"e":null,"f":"\"\n","list":[18446744073709551615,{}]})");
  CHECK(object.dump(std::size_t{1}) ==
        "{\n \"b\": 1,\n \"a\": -2,\n \"c\": 0.1,\n \"d\": true,\n \"e\": null,\n \"f\": \"\\\"\\n\",\n \"list\": [\n  "
        "18446744073709551615,\n  {}\n ]\n}");
  CHECK(Json::parse(object.dump()) == object);
  CHECK(Json::parse(object.dump(std::size_t{2})) == object);
}

TEST_CASE("text_that_is_no_utf8_is_replaced_and_a_number_that_is_none_is_null") {
  CHECK(Json("a\xff").dump() == "\"a\xef\xbf\xbd\"");
  CHECK(Json("\xc3\xa4").dump(Json::Characters::ascii) == "\"\\u00e4\"");
  CHECK(Json(std::nan("")).dump() == "null");
}

TEST_CASE("values_of_another_kind_and_missing_keys_are_errors") {
  const Json object = {{"a", 1}};
  CHECK_THROWS_WITH_AS(object.at("b"), "the key \"b\" is missing", JsonError);
  CHECK_THROWS_WITH_AS(object.at("a").text(), "a number stands where a text is wanted", JsonError);
  CHECK_THROWS_AS(Json(-1).whole(), JsonError);
  CHECK_THROWS_AS(Json("1").number(), JsonError);
  CHECK(!Json(1).contains("a"));
}

TEST_CASE("limits_are_kept") {
  CHECK(Json::parse(R"({"a": 1, "a": 2})").at("a").whole() == 2);
  CHECK_THROWS_WITH_AS(Json::parse(R"({"a": 1, "a": 2})", {.depth = 2, .keys_may_repeat = false}),
                       "the key \"a\" is there twice in one object", JsonError);
  CHECK_NOTHROW(Json::parse("[[]]", {.depth = 2, .keys_may_repeat = true}));
  CHECK_THROWS_WITH_AS(Json::parse("[[[]]]", {.depth = 2, .keys_may_repeat = true}), "nested deeper than 2 levels",
                       JsonError);
  CHECK_THROWS_AS(Json::parse("[1,"), JsonError);
  CHECK_THROWS_AS(Json::parse(std::string(100'000, '[')), JsonError);
}

}  // namespace json_test
