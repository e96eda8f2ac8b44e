// Numbers and text are written, and all is parsed, by nlohmann's library; the values between are plain vectors.
#include "json/json.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace tools {

namespace {

using Theirs = nlohmann::json;

const char* kind_of(const Json& value) {
  if (value.is_null()) return "null";
  if (value.is_bool()) return "a truth value";
  if (value.is_text()) return "a text";
  if (value.is_array()) return "an array";
  return value.is_object() ? "an object" : "a number";
}

[[noreturn]] void refuse(const Json& value, const char* wanted) {
  throw JsonError(fmt::format("{} stands where {} is wanted", kind_of(value), wanted));
}

template <typename Members>
auto find(Members& members, std::string_view key) {
  return std::find_if(members.rbegin(), members.rend(), [&](const JsonMember& member) { return member.key == key; });
}

class Writer {
 public:
  Writer(std::optional<std::size_t> indent, bool ascii) : indent_(indent), ascii_(ascii) {}

  void operator()(const Json::Array& entries) {
    write('[', ']', entries, [this](const Json& entry) { write(entry); });
  }
  void operator()(const Json::Object& members) {
    write('{', '}', members, [this](const JsonMember& member) {
      (*this)(member.key);
      text_ += indent_ ? ": " : ":";
      write(member.value);
    });
  }
  template <typename Scalar>
  void operator()(const Scalar& value) {
    text_ += Theirs(value).dump(-1, ' ', ascii_, Theirs::error_handler_t::replace);
  }

  void write(const Json& value) { std::visit(*this, value.value()); }
  std::string take() { return std::move(text_); }

 private:
  template <typename Entries, typename WriteEntry>
  void write(char open, char close, const Entries& entries, const WriteEntry& write_entry) {
    text_ += open;
    ++depth_;
    for (std::size_t index = 0; index < entries.size(); ++index) {
      if (index > 0) text_ += ',';
      new_line();
      write_entry(entries[index]);
    }
    --depth_;
    if (!entries.empty()) new_line();
    text_ += close;
  }
  void new_line() {
    if (indent_) text_.append(1, '\n').append(*indent_ * depth_, ' ');
  }

  std::optional<std::size_t> indent_;
  bool ascii_;
  std::size_t depth_ = 0;
  std::string text_;
};

// Builds a value from what the parser meets.
class Builder {
 public:
  explicit Builder(const Json::Limits& limits) : limits_(limits) {}

  bool null() { return add(Json()); }
  bool boolean(bool value) { return add(value); }
  bool number_integer(std::int64_t value) { return add(value); }
  bool number_unsigned(std::uint64_t value) { return add(value); }
  bool number_float(double value, const std::string&) { return add(value); }
  bool string(std::string& value) { return add(std::move(value)); }
  bool binary(Theirs::binary_t&) { return false; }  // not in text
  bool start_object(std::size_t) { return open(Json::object()); }
  bool start_array(std::size_t) { return open(Json::array()); }
  bool key(std::string& value) {
    keys_.back().push_back(std::move(value));
    return true;
  }
  bool end_object() {
    if (!limits_.keys_may_repeat) require_different(open_.back().members());
    return close();
  }
  bool end_array() { return close(); }
  bool parse_error(std::size_t, const std::string&, const Theirs::exception& error) {
    const std::string text(error.what());  // "[json.exception.parse_error.101] parse error at line 1, column 2: …"
    throw JsonError(text.substr(text.find("] ") + 2));
  }

  Json take() { return std::move(whole_); }

 private:
  bool add(Json value) {
    if (open_.empty()) {
      whole_ = std::move(value);
    } else if (open_.back().is_array()) {
      open_.back().push_back(std::move(value));
    } else {
      open_.back().append(std::move(keys_.back().back()), std::move(value));
      keys_.back().pop_back();
    }
    return true;
  }
  bool open(Json value) {
    if (open_.size() == limits_.depth) throw JsonError(fmt::format("nested deeper than {} levels", limits_.depth));
    open_.push_back(std::move(value));
    keys_.emplace_back();
    return true;
  }
  bool close() {
    Json value = std::move(open_.back());
    open_.pop_back();
    keys_.pop_back();
    return add(std::move(value));
  }
  static void require_different(const Json::Object& members) {
    std::vector<std::string_view> keys;
    for (const JsonMember& member : members) keys.push_back(member.key);
    std::sort(keys.begin(), keys.end());
    const auto twice = std::adjacent_find(keys.begin(), keys.end());
    if (twice == keys.end()) return;
    throw JsonError(fmt::format("the key {} is there twice in one object", Json(*twice).dump(Json::Characters::ascii)));
  }

  Json::Limits limits_;
  Json whole_;
  std::vector<Json> open_;                      // arrays and objects, the outermost first
  std::vector<std::vector<std::string>> keys_;  // of each, the key whose value follows
};

}  // namespace

// The library's rule for braces.
Json::Json(std::initializer_list<Json> entries) {
  const bool is_object = std::all_of(entries.begin(), entries.end(), [](const Json& entry) {
    return entry.is_array() && entry.size() == 2 && entry.entries().front().is_text();
  });
  if (!is_object) {
    value_ = Array(entries);
    return;
  }
  Object members;
  for (const Json& entry : entries) members.push_back({entry.entries()[0].text(), entry.entries()[1]});
  value_ = std::move(members);
}

Json Json::array() {
  Json result;
  result.value_ = Array();
  return result;
}

Json Json::object() {
  Json result;
  result.value_ = Object();
  return result;
}

Json& Json::operator[](std::string_view key) {
  if (is_null()) value_ = Object();
  if (!is_object()) refuse(*this, "an object");
  auto& members = std::get<Object>(value_);
  const auto found = find(members, key);
  return found == members.rend() ? append(std::string(key), Json()) : found->value;
}

Json& Json::append(std::string key, Json value) {
  return std::get<Object>(value_).emplace_back(JsonMember{std::move(key), std::move(value)}).value;
}

void Json::push_back(Json value) {
  if (is_null()) value_ = Array();
  if (!is_array()) refuse(*this, "an array");
  std::get<Array>(value_).push_back(std::move(value));
}

bool Json::truth() const {
  if (!is_bool()) refuse(*this, "true or false");
  return std::get<bool>(value_);
}

std::uint64_t Json::whole() const {
  if (!is_whole()) refuse(*this, "a whole number from 0");
  return std::get<std::uint64_t>(value_);
}

double Json::number() const {
  if (const auto* value = std::get_if<double>(&value_)) return *value;
  if (const auto* value = std::get_if<std::int64_t>(&value_)) return static_cast<double>(*value);
  if (!is_whole()) refuse(*this, "a number");
  return static_cast<double>(whole());
}

const std::string& Json::text() const {
  if (!is_text()) refuse(*this, "a text");
  return std::get<std::string>(value_);
}

const Json::Array& Json::entries() const {
  if (!is_array()) refuse(*this, "an array");
  return std::get<Array>(value_);
}

const Json::Object& Json::members() const {
  if (!is_object()) refuse(*this, "an object");
  return std::get<Object>(value_);
}

const Json& Json::at(std::string_view key) const {
  const auto found = find(members(), key);
  if (found == members().rend()) throw JsonError(fmt::format("the key \"{}\" is missing", key));
  return found->value;
}

bool Json::contains(std::string_view key) const { return is_object() && find(members(), key) != members().rend(); }

std::size_t Json::size() const { return is_array() ? entries().size() : members().size(); }

std::string Json::dump(Characters characters) const {
  Writer writer(std::nullopt, characters == Characters::ascii);
  writer.write(*this);
  return writer.take();
}

std::string Json::dump(std::size_t indent) const {
  Writer writer(indent, false);
  writer.write(*this);
  return writer.take();
}

Json Json::parse(std::string_view text, const Limits& limits) {
  Builder builder(limits);
  Theirs::sax_parse(text, &builder);
  return builder.take();
}

bool Json::operator==(const Json& other) const { return value_ == other.value_; }

}  // namespace tools
