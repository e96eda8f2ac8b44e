// The form that a JSON file must have, and a parser that accepts nothing else: unknown, missing and repeated members,
// other types and other nesting are refused. It builds no document; what the form names goes to the form's functions,
// in the order of the file, so a hostile file costs no more memory than the functions take.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::checkpoint {

struct JsonMember;

// What the form's functions throw when a value is not acceptable: parse_json() turns it into a DataError.
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

}  // namespace tessera::checkpoint
