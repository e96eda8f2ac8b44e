// Events of the JSON parser, held against the form. The stack is of the form's depth, not of the file's.
#include "checkpoint/json_form.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <unordered_set>
#include <utility>

#include "checkpoint/safetensors_header.hpp"
#include "tessera/base/error.hpp"

namespace tessera::checkpoint {

namespace {

using Json = nlohmann::json;
using Kind = JsonForm::Kind;

std::string_view expectation(Kind kind) {
  switch (kind) {
    case Kind::text: return "a text";
    case Kind::whole: return "a whole number";
    case Kind::number: return "a number";
    case Kind::list: return "a list";
    case Kind::object: return "an object";
    case Kind::texts: return "an object of texts";
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

class FormEvents final : public nlohmann::json_sax<Json> {
 public:
  FormEvents(const JsonForm& form, const std::string& path) : form_(form), path_(path) {}

  bool null() final {
    return skips() || (expected() != nullptr && expected()->kind == Kind::number) || mismatch("null");
  }
  bool boolean(bool) final { return skips() || mismatch("a boolean"); }
  bool number_integer(number_integer_t) final { return skips() || number("a negative number"); }
  bool number_float(number_float_t, const string_t&) final {
    return skips() || number("a fraction or too large a number");
  }
  bool binary(binary_t&) final { return mismatch("binary data"); }

  bool number_unsigned(number_unsigned_t value) final {
    if (skips()) return true;
    if (expected() == nullptr || expected()->kind != Kind::whole) return number("a number");
    call([&] { expected()->take_whole(value); });
    return next();
  }

  bool string(string_t& value) final {
    if (skips()) return true;
    if (!frames_.empty() && frames_.back().form->kind == Kind::texts) {
      call([&] { frames_.back().form->take_named(frames_.back().name, value); });
      return true;
    }
    if (expected() == nullptr || expected()->kind != Kind::text) return mismatch("a text");
    call([&] { expected()->take_text(value); });
    return next();
  }

  bool start_object(std::size_t) final {
    if (skip_opens()) return true;
    if (expected() == nullptr || (expected()->kind != Kind::object && expected()->kind != Kind::texts)) {
      return mismatch("an object");
    }
    return open();
  }

  bool start_array(std::size_t) final {
    if (skip_opens()) return true;
    if (expected() == nullptr || expected()->kind != Kind::list) return mismatch("a list");
    return open();
  }

  bool key(string_t& name) final {
    if (skipped_depth_ > 0) return true;
    Frame& frame = frames_.back();
    frame.member = nullptr;
    if (!frame.seen.insert(name).second) refuse(fmt::format("{} is given twice", shown_name(name)));
    if (frame.form->kind == Kind::texts) {
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

  bool end_array() final { return skip_closes() || close(); }

  bool parse_error(std::size_t position, const std::string&, const Json::exception&) final {
    throw DataError(fmt::format("{}: is not JSON: wrong at its byte {}", path_, position));
  }

 private:
  // The form of the value that comes next; null where an object of texts has one.
  const JsonForm* expected() const {
    if (frames_.empty()) return &form_;
    const Frame& frame = frames_.back();
    if (frame.form->kind == Kind::list) return &frame.form->element.front();
    return frame.member == nullptr ? nullptr : &frame.member->form;
  }

  bool next() {
    if (!frames_.empty() && frames_.back().form->kind == Kind::list) ++frames_.back().elements;
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

  bool number(std::string_view what) {
    return (expected() != nullptr && expected()->kind == Kind::number) ? next() : mismatch(what);
  }

  // What belongs to a member that is not looked at, however deep it is.
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
      if (frame.form->kind == Kind::list) {
        place += fmt::format("[{}]", frame.elements);
      } else if (frame.form->kind == Kind::texts) {
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

JsonForm::JsonForm(Kind its_kind) : kind(its_kind) {}

JsonForm JsonForm::text(std::function<void(std::string_view)> take) {
  JsonForm form(Kind::text);
  form.take_text = std::move(take);
  return form;
}

JsonForm JsonForm::whole(std::function<void(std::uint64_t)> take) {
  JsonForm form(Kind::whole);
  form.take_whole = std::move(take);
  return form;
}

JsonForm JsonForm::number() { return JsonForm(Kind::number); }

JsonForm JsonForm::list(JsonForm element) {
  JsonForm form(Kind::list);
  form.element.push_back(std::move(element));
  return form;
}

JsonForm JsonForm::object(std::vector<JsonMember> members) {
  JsonForm form(Kind::object);
  form.members = std::move(members);
  return form;
}

JsonForm JsonForm::texts(std::function<void(const std::string&, std::string_view)> take) {
  JsonForm form(Kind::texts);
  form.take_named = std::move(take);
  return form;
}

void parse_json(std::string_view json, const JsonForm& form, const std::string& path) {
  FormEvents events(form, path);
  Json::sax_parse(json.begin(), json.end(), &events);
}

}  // namespace tessera::checkpoint
