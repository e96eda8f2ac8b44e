// The form that a JSON file must have, and a parser that accepts nothing else: unknown, missing and repeated members,
// other types and other nesting are refused. It builds no document; what the form names goes to the form's functions,
// in the order of the file, so a hostile file costs no more memory than the functions take. And text in JSON, composed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera::checkpoint {

struct JsonMember;

// The form's functions throw this when a value is not acceptable: parse_json() turns it into a DataError.
struct JsonRefusal {
  std::string text;
};

class JsonForm {
 public:
  enum class Kind { text, whole, number, list, object, texts };

  explicit JsonForm(Kind kind);

  Kind kind;
  std::function<void(std::string_view)> take_text;                       // of a text
  std::function<void(std::uint64_t)> take_whole;                         // of a whole number from 0 to 2^64 - 1
  std::function<void(const std::string&, std::string_view)> take_named;  // of texts: name, text
  std::function<void()> begin;                                           // of a list or an object
  std::function<void()> end;
  std::vector<JsonForm> element;          // of a list: the one form of all elements
  std::vector<JsonMember> members;        // of an object
  std::function<bool()> accepts_unknown;  // of an object: members that the form does not name are skipped

  static JsonForm text(std::function<void(std::string_view)> take);
  static JsonForm whole(std::function<void(std::uint64_t)> take);
  static JsonForm number();  // any, or null; for people, and not looked at
  static JsonForm list(JsonForm element);
  static JsonForm object(std::vector<JsonMember> members);
  // An object with members of any names, each once, that are texts.
  static JsonForm texts(std::function<void(const std::string&, std::string_view)> take);
};

struct JsonMember {
  std::string_view name;
  JsonForm form;
  bool required = true;
};

// Throws DataError whose text begins with `path`, and names the place: "files[3].bytes: expected …".
void parse_json(std::string_view json, const JsonForm& form, const std::string& path);

// Receives what a parser finds, in the order of the file. Functions that return false end the parsing.
class JsonEvents {
 public:
  enum class Other { null, number, anything };  // of numbers: a negative one, a fraction or one beyond 2^64 - 1

  virtual ~JsonEvents() = default;
  virtual bool other(Other kind, std::string_view what) = 0;  // what: for an error
  virtual bool whole(std::uint64_t value) = 0;
  virtual bool text(std::string& value) = 0;
  virtual bool begin_object() = 0;
  virtual bool key(std::string& name) = 0;
  virtual bool end_object() = 0;
  virtual bool begin_list() = 0;
  virtual bool end_list() = 0;
  virtual void not_json(std::size_t position) = 0;
};

// False where the text is no JSON, or a function ended it.
bool parse_json(std::string_view json, JsonEvents& events);

// Composes JSON. Lists and objects are closed by their caller.
class JsonText {
 public:
  enum class Form { in_one_line, indented };  // indented: by one blank a level

  // `not_utf8`: what a UsageError says of a text that is not UTF-8.
  JsonText(Form form, std::string not_utf8) : form_(form), not_utf8_(std::move(not_utf8)) {}

  JsonText& begin_object() { return begin('{'); }
  JsonText& end_object() { return end('}'); }
  JsonText& begin_list() { return begin('['); }
  JsonText& end_list() { return end(']'); }
  JsonText& key(std::string_view name);
  JsonText& text(std::string_view value);
  JsonText& whole(std::uint64_t value);
  JsonText& number(double value);  // null where JSON has no such number
  JsonText& member(std::string_view name, std::string_view value) { return key(name).text(value); }
  JsonText& member(std::string_view name, std::uint64_t value) { return key(name).whole(value); }
  JsonText& member(std::string_view name, const std::map<std::string, std::string>& values);
  std::string take() { return std::move(text_); }

 private:
  JsonText& begin(char bracket);
  JsonText& end(char bracket);
  void next();  // what comes between one element and the next
  void new_line();
  std::string quoted(std::string_view value) const;

  Form form_;
  std::string not_utf8_;
  std::string text_;
  std::size_t depth_ = 0;
  bool first_ = true;  // in what is open
  bool after_key_ = false;
};

// A text in quotes, of ASCII characters alone; what is not UTF-8 is replaced.
std::string quoted_ascii(std::string_view text);

}  // namespace tessera::checkpoint
