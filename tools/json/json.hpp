// JSON values: what tools and programs print, and what they read back. A thin layer over nlohmann's library, whose
// header takes ten seconds to compile and stands in json.cpp alone.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace tools {

// A JsonError is thrown for text that is no JSON, and for a value that is not of the kind, or has not the key, that was
// asked for.
class JsonError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class Json;
struct JsonMember;  // of an object

// Null, a truth value, a number, a text, an array, or an object, whose keys keep the order in which they were added.
class Json {
 public:
  using Array = std::vector<Json>;
  using Object = std::vector<JsonMember>;

  Json();  // null
  Json(std::nullptr_t);
  Json(bool value);
  template <std::integral T>
  Json(T number);
  template <std::floating_point T>
  Json(T number);
  Json(const char* text);
  Json(std::string_view text);
  Json(std::string text);
  template <typename T>
  Json(const std::optional<T>& value);
  template <typename T>
  Json(const std::vector<T>& values);
  // {{"a", 1}, {"b", 2}}: an object, because each entry is a text and a value. Everything else is an array.
  Json(std::initializer_list<Json> entries);
  static Json array();
  static Json object();

  // Null becomes an object, or an array, with the first entry.
  Json& operator[](std::string_view key);
  void push_back(Json value);
  Json& append(std::string key, Json value);  // of an object; where the key is there already, the last one counts

  bool is_null() const { return value_.index() == 0; }
  bool is_bool() const { return std::holds_alternative<bool>(value_); }
  bool is_whole() const { return std::holds_alternative<std::uint64_t>(value_); }  // a number, 0 or more, in 64 bits
  bool is_number() const {
    return is_whole() || std::holds_alternative<std::int64_t>(value_) || std::holds_alternative<double>(value_);
  }
  bool is_text() const { return std::holds_alternative<std::string>(value_); }
  bool is_array() const { return std::holds_alternative<Array>(value_); }
  bool is_object() const { return std::holds_alternative<Object>(value_); }

  // These throw JsonError for what the value is not, or has not.
  bool truth() const;
  std::uint64_t whole() const;
  double number() const;
  const std::string& text() const;
  const Array& entries() const;
  const Object& members() const;
  const Json& at(std::string_view key) const;
  bool contains(std::string_view key) const;  // false for what is no object
  std::size_t size() const;                   // of an array or object

  enum class Characters { utf8, ascii };
  // Bytes that are not UTF-8 are replaced; a number that is not finite is written as null.
  std::string dump(Characters characters = Characters::utf8) const;  // on one line
  std::string dump(std::size_t indent) const;                        // so many blanks per level

  struct Limits {
    std::size_t depth;     // of nested arrays and objects
    bool keys_may_repeat;  // in one object; the last one counts
  };
  // Throws JsonError that says where the text is no JSON, or passes a limit.
  static Json parse(std::string_view text, const Limits& limits = {.depth = 512, .keys_may_repeat = true});

  bool operator==(const Json& other) const;

  // Whole numbers below 0 alone are std::int64_t.
  using Value = std::variant<std::nullptr_t, bool, std::uint64_t, std::int64_t, double, std::string, Array, Object>;
  const Value& value() const { return value_; }

 private:
  Value value_;
};

struct JsonMember {
  std::string key;
  Json value;
  bool operator==(const JsonMember&) const = default;
};

// Where a member is a complete type, which clang asks for.
inline Json::Json() = default;
inline Json::Json(std::nullptr_t) {}
inline Json::Json(bool value) : value_(value) {}
inline Json::Json(const char* text) : value_(std::string(text)) {}
inline Json::Json(std::string_view text) : value_(std::string(text)) {}
inline Json::Json(std::string text) : value_(std::move(text)) {}

template <std::integral T>
Json::Json(T number) {
  if (std::cmp_less(number, 0)) {
    value_ = static_cast<std::int64_t>(number);
  } else {
    value_ = static_cast<std::uint64_t>(number);
  }
}

template <std::floating_point T>
Json::Json(T number) : value_(static_cast<double>(number)) {}

template <typename T>
Json::Json(const std::optional<T>& value) {
  if (value) *this = Json(*value);
}

template <typename T>
Json::Json(const std::vector<T>& values) : value_(Array(values.begin(), values.end())) {}

}  // namespace tools
