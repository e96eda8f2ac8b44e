// Events of the JSON parser, held against the form. The stack is of the form's depth, not of the file's.
#include "checkpoint/json_form.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include "checkpoint/safetensors_header.hpp"
#include "tessera/base/error.hpp"

namespace tessera::checkpoint {

namespace {

using Json = nlohmann::json;
using FormKind = JsonForm::Kind;

std::string_view expectation(FormKind kind) {
  switch (kind) {
    case FormKind::text: return "a text";
    case FormKind::whole: return "a whole number";
    case FormKind::number: return "a number";
    case FormKind::list: return "a list";
    case FormKind::object: return "an object";
    case FormKind::texts: return "an object of texts";
  }
  throw InternalError("json_form: a kind that does not exist");
}

// A list or an object that is open.
struct Frame {
  const JsonForm* form;
  std::uint64_t elements = 0;              // of a list, so far
  const JsonMember* member = nullptr;      // of an object, the one that stands here
  std::string name = {};                   // of texts, likewise
  std::unordered_set<std::string> seen{};  // names of an object
};

class FormEvents final : public JsonEvents {
 public:
  FormEvents(const JsonForm& form, const std::string& path) : form_(form), path_(path) {}

  bool other(Other kind, std::string_view what) final {
    if (skips()) return true;
    if (kind == Other::anything || expected() == nullptr || expected()->kind != FormKind::number) return mismatch(what);
    return kind == Other::null || next();
  }

  bool whole(std::uint64_t value) final {
    if (skips()) return true;
    if (expected() == nullptr || expected()->kind != FormKind::whole) return other(Other::number, "a number");
    call([&] { expected()->take_whole(value); });
    return next();
  }

  bool text(std::string& value) final {
    if (skips()) return true;
    if (!frames_.empty() && frames_.back().form->kind == FormKind::texts) {
      call([&] { frames_.back().form->take_named(frames_.back().name, value); });
      return true;
    }
    if (expected() == nullptr || expected()->kind != FormKind::text) return mismatch("a text");
    call([&] { expected()->take_text(value); });
    return next();
  }

  bool begin_object() final {
    if (skip_opens()) return true;
    if (expected() == nullptr || (expected()->kind != FormKind::object && expected()->kind != FormKind::texts)) {
      return mismatch("an object");
    }
    return open();
  }

  bool begin_list() final {
    if (skip_opens()) return true;
    if (expected() == nullptr || expected()->kind != FormKind::list) return mismatch("a list");
    return open();
  }

  bool key(std::string& name) final {
    if (skipped_depth_ > 0) return true;
    Frame& frame = frames_.back();
    frame.member = nullptr;
    if (!frame.seen.insert(name).second) refuse(fmt::format("{} is given twice", shown_name(name)));
    if (frame.form->kind == FormKind::texts) {
      frame.name = name;
      return true;
    }
    const auto& members = frame.form->members;
    const auto known =
        std::find_if(members.begin(), members.end(), [&](const auto& each) { return each.name == name; });
    if (known != members.end()) {
      frame.member = &*known;
    } else if (frame.form->accepts_unknown && frame.form->accepts_unknown()) {
      skips_next_ = true;
    } else {
      refuse(fmt::format("has an unknown member {}", shown_name(name)));
    }
    return true;
  }

  bool end_object() final {
    if (skip_closes()) return true;
    Frame& frame = frames_.back();
    frame.member = nullptr;
    for (const JsonMember& member : frame.form->members) {
      if (member.required && !frame.seen.contains(std::string(member.name))) {
        refuse(fmt::format("has no member \"{}\"", member.name));
      }
    }
    return close();
  }

  bool end_list() final { return skip_closes() || close(); }

  void not_json(std::size_t position) final {
    throw DataError(fmt::format("{}: is not JSON: wrong at its byte {}", path_, position));
  }

 private:
  // The form of the value that comes next; null where an object of texts has one.
  const JsonForm* expected() const {
    if (frames_.empty()) return &form_;
    const Frame& frame = frames_.back();
    if (frame.form->kind == FormKind::list) return &frame.form->element.front();
    return frame.member == nullptr ? nullptr : &frame.member->form;
  }

  bool next() {
    if (!frames_.empty() && frames_.back().form->kind == FormKind::list) ++frames_.back().elements;
    return true;
  }

  bool open() {
    const JsonForm* form = expected();
    frames_.push_back({.form = form});
    if (form->begin) call(form->begin);
    return true;
  }

  bool close() {
    if (frames_.back().form->end) call(frames_.back().form->end);
    frames_.pop_back();
    return next();
  }

  // True for the parts of a member that is not looked at, however deep it is.
  bool skips() {
    if (skipped_depth_ > 0) return true;
    return std::exchange(skips_next_, false);
  }
  bool skip_opens() {
    const bool skipped = skips();
    if (skipped) ++skipped_depth_;
    return skipped;
  }
  bool skip_closes() {
    if (skipped_depth_ == 0) return false;
    --skipped_depth_;
    return true;
  }

  template <typename Function>
  void call(const Function& function) {
    try {
      function();
    } catch (const JsonRefusal& refusal) {
      refuse(refusal.text);
    }
  }

  bool mismatch(std::string_view found) const {
    refuse(
        fmt::format("expected {}, found {}", expected() == nullptr ? "a text" : expectation(expected()->kind), found));
  }

  [[noreturn]] void refuse(const std::string& what) const {
    const std::string place = where();
    throw DataError(place.empty() ? fmt::format("{}: {}", path_, what) : fmt::format("{}: {}: {}", path_, place, what));
  }

  std::string where() const {
    std::string place;
    for (const Frame& frame : frames_) {
      if (frame.form->kind == FormKind::list) {
        place += fmt::format("[{}]", frame.elements);
      } else if (frame.form->kind == FormKind::texts) {
        if (!frame.name.empty()) place += fmt::format("{}{}", place.empty() ? "" : ".", shown_name(frame.name));
      } else if (frame.member != nullptr) {
        place += fmt::format("{}{}", place.empty() ? "" : ".", frame.member->name);
      }
    }
    return place;
  }

  const JsonForm& form_;
  const std::string& path_;
  std::vector<Frame> frames_;
  bool skips_next_ = false;
  std::uint64_t skipped_depth_ = 0;
};

}  // namespace

JsonForm::JsonForm(FormKind its_kind) : kind(its_kind) {}

JsonForm JsonForm::text(std::function<void(std::string_view)> take) {
  JsonForm form(FormKind::text);
  form.take_text = std::move(take);
  return form;
}

JsonForm JsonForm::whole(std::function<void(std::uint64_t)> take) {
  JsonForm form(FormKind::whole);
  form.take_whole = std::move(take);
  return form;
}

JsonForm JsonForm::number() { return JsonForm(FormKind::number); }

JsonForm JsonForm::list(JsonForm element) {
  JsonForm form(FormKind::list);
  form.element.push_back(std::move(element));
  return form;
}

JsonForm JsonForm::object(std::vector<JsonMember> members) {
  JsonForm form(FormKind::object);
  form.members = std::move(members);
  return form;
}

JsonForm JsonForm::texts(std::function<void(const std::string&, std::string_view)> take) {
  JsonForm form(FormKind::texts);
  form.take_named = std::move(take);
  return form;
}

void parse_json(std::string_view json, const JsonForm& form, const std::string& path) {
  FormEvents events(form, path);
  parse_json(json, events);
}

// ---- the parser ----

namespace {

class Adapter final : public nlohmann::json_sax<Json> {
 public:
  explicit Adapter(JsonEvents& events) : events_(events) {}

  bool null() final { return events_.other(JsonEvents::Other::null, "null"); }
  bool boolean(bool) final { return events_.other(JsonEvents::Other::anything, "a boolean"); }
  bool number_integer(number_integer_t) final { return events_.other(JsonEvents::Other::number, "a negative number"); }
  bool number_float(number_float_t, const string_t&) final {
    return events_.other(JsonEvents::Other::number, "a fraction or too large a number");
  }
  bool binary(binary_t&) final { return events_.other(JsonEvents::Other::anything, "binary data"); }
  bool number_unsigned(number_unsigned_t value) final { return events_.whole(value); }
  bool string(string_t& value) final { return events_.text(value); }
  bool start_object(std::size_t) final { return events_.begin_object(); }
  bool key(string_t& name) final { return events_.key(name); }
  bool end_object() final { return events_.end_object(); }
  bool start_array(std::size_t) final { return events_.begin_list(); }
  bool end_array() final { return events_.end_list(); }
  bool parse_error(std::size_t position, const std::string&, const Json::exception&) final {
    events_.not_json(position);
    return false;
  }

 private:
  JsonEvents& events_;
};

}  // namespace

bool parse_json(std::string_view json, JsonEvents& events) {
  Adapter adapter(events);
  return Json::sax_parse(json.begin(), json.end(), &adapter);
}

// ---- composing ----

std::string quoted_ascii(std::string_view text) {
  return Json(std::string(text)).dump(-1, ' ', true, Json::error_handler_t::replace);
}

JsonText& JsonText::key(std::string_view name) {
  next();
  text_ += quoted(name);
  text_ += form_ == Form::indented ? ": " : ":";
  after_key_ = true;
  return *this;
}

JsonText& JsonText::text(std::string_view value) {
  next();
  text_ += quoted(value);
  return *this;
}

JsonText& JsonText::whole(std::uint64_t value) {
  next();
  text_ += std::to_string(value);
  return *this;
}

JsonText& JsonText::number(double value) {
  next();
  text_ += Json(value).dump();
  return *this;
}

JsonText& JsonText::member(std::string_view name, const std::map<std::string, std::string>& values) {
  key(name).begin_object();
  for (const auto& [each, text] : values) member(each, std::string_view(text));
  return end_object();
}

JsonText& JsonText::begin(char bracket) {
  next();
  text_ += bracket;
  ++depth_;
  first_ = true;
  return *this;
}

JsonText& JsonText::end(char bracket) {
  --depth_;
  if (!first_) new_line();
  text_ += bracket;
  first_ = false;
  return *this;
}

void JsonText::next() {
  if (std::exchange(after_key_, false)) return;
  if (!first_) text_ += ',';
  if (depth_ > 0) new_line();
  first_ = false;
}

void JsonText::new_line() {
  if (form_ == Form::indented) text_.append("\n").append(depth_, ' ');
}

std::string JsonText::quoted(std::string_view value) const {
  try {
    return Json(std::string(value)).dump();
  } catch (const Json::type_error&) {
    throw UsageError(not_utf8_);
  }
}

}  // namespace tessera::checkpoint
