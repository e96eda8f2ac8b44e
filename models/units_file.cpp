// Parsed with a bounded depth, then read key by key, each place known by its path.
#include "models/units_file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <initializer_list>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "json/json.hpp"
#include "tessera/base/error.hpp"

namespace models {

namespace plan = tessera::plan;
using tools::Json;

namespace {

constexpr std::size_t most_depth = 8;
constexpr std::size_t most_quoted = 40;  // characters of a file that a message repeats
constexpr std::size_t most_message = 200;

std::string shown(const Json& value) {
  std::string text = value.dump(Json::Characters::ascii);
  if (text.size() > most_quoted) text = text.substr(0, most_quoted) + "…";
  return text;
}

bool is_control(char byte) { return static_cast<unsigned char>(byte) < 0x20 || byte == 0x7f; }

// The parser may repeat any bytes of a file.
std::string printable(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](char byte) { return byte < 0 || is_control(byte); }, '?');
  return text.substr(0, most_message);
}

// A value and where it stands.
class Place {
 public:
  Place(const Json& value, std::string file, std::string path)
      : value_(value), file_(std::move(file)), path_(std::move(path)) {}

  [[noreturn]] void refuse(const std::string& why) const {
    throw tessera::DataError(fmt::format("{}: {}: {}", file_, path_.empty() ? "the file" : path_, why));
  }

  // An object with these keys, of which those marked with ? may be missing.
  void require_keys(std::initializer_list<std::string_view> keys) const {
    if (!value_.is_object()) refuse(fmt::format("takes an object, not {}", shown(value_)));
    std::set<std::string_view> known;
    for (std::string_view key : keys) {
      const bool optional = key.back() == '?';
      if (optional) key.remove_suffix(1);
      known.insert(key);
      if (!optional && !has(key)) refuse(fmt::format("\"{}\" is missing", key));
    }
    for (const auto& [key, unused] : value_.members()) {
      if (!known.contains(key)) refuse(fmt::format("unknown key {}", shown(Json(key))));
    }
  }
  bool has(std::string_view key) const { return value_.contains(key); }
  Place at(const std::string& key) const {
    return {value_.at(key), file_, path_.empty() ? key : fmt::format("{}.{}", path_, key)};
  }

  std::vector<Place> list(std::size_t most) const {
    if (!value_.is_array()) refuse(fmt::format("takes a list, not {}", shown(value_)));
    if (value_.size() > most) refuse(fmt::format("has {} entries, more than {}", value_.size(), most));
    std::vector<Place> result;
    for (std::size_t index = 0; index < value_.size(); ++index) {
      result.emplace_back(value_.entries()[index], file_, fmt::format("{}[{}]", path_, index));
    }
    return result;
  }
  std::size_t whole(std::size_t most) const {
    if (value_.is_whole() && value_.whole() <= most) return value_.whole();
    refuse(fmt::format("takes a whole number from 0 to {}, not {}", most, shown(value_)));
  }
  bool is(std::string_view text) const { return value_.is_text() && value_.text() == text; }
  bool truth(std::string_view or_what = "") const {
    if (value_.is_bool()) return value_.truth();
    refuse(fmt::format("takes true or false{}, not {}", or_what, shown(value_)));
  }
  std::string text() const {
    if (value_.is_text()) {
      const std::string& text = value_.text();
      const bool is_line = std::none_of(text.begin(), text.end(), is_control);
      if (!text.empty() && text.size() <= most_name_bytes && is_line) return text;
    }
    refuse(fmt::format("takes a text of 1 to {} bytes without control characters, not {}", most_name_bytes,
                       shown(value_)));
  }

 private:
  const Json& value_;
  std::string file_;
  std::string path_;
};

tessera::Precision precision_of(const Place& place) {
  const std::string name = place.text();
  if (name == "fp32") return tessera::fp32_precision;
  if (name == "bf16") return tessera::bf16_mixed;
  if (name == "fp16") return tessera::fp16_mixed;
  place.refuse(fmt::format("takes fp32, bf16 or fp16, not \"{}\"", name));
}

plan::ParameterSpec parameter_of(const Place& place, const std::string& unit) {
  place.require_keys({"name", "shape", "frozen?"});
  plan::ParameterSpec spec{.name = unit + "." + place.at("name").text(), .shape = {}};
  for (const Place& extent : place.at("shape").list(most_extents)) spec.shape.push_back(extent.whole(most_extent));
  try {
    tessera::element_count(spec.shape);
  } catch (const tessera::UsageError& error) {
    place.at("shape").refuse(error.what());
  }
  spec.frozen = place.has("frozen") && place.at("frozen").truth();
  return spec;
}

tessera::Resharding resharding_of(const Place& place) {
  if (place.is("group")) return tessera::Axis::shard;
  return place.truth(" or \"group\"");
}

plan::UnitSpec unit_of(const Place& place, std::size_t& parameters_left) {
  place.require_keys(
      {"name", "parameters", "precision?", "prefetch?", "reshard_after_forward?", "recompute?", "in_replica?"});
  plan::UnitSpec unit{place.at("name").text(), {}};
  if (place.has("precision")) unit.precision = precision_of(place.at("precision"));
  if (place.has("prefetch")) unit.prefetch = place.at("prefetch").whole(most_prefetch);
  if (place.has("reshard_after_forward")) unit.reshard_after_forward = resharding_of(place.at("reshard_after_forward"));
  unit.recompute = place.has("recompute") && place.at("recompute").truth();
  if (place.has("in_replica") && place.at("in_replica").truth()) unit.apart = tessera::Axis::replicate;
  unit.prefix = unit.name + ".";
  for (const Place& parameter : place.at("parameters").list(parameters_left)) {
    unit.parameters.push_back(parameter_of(parameter, unit.name));
  }
  parameters_left -= unit.parameters.size();
  return unit;
}

std::vector<plan::UnitSpec> units_of(const Place& place) {
  std::vector<plan::UnitSpec> units;
  std::set<std::string> names;
  std::size_t parameters_left = most_parameters;
  for (const Place& entry : place.list(most_units)) {
    units.push_back(unit_of(entry, parameters_left));
    if (!names.insert(units.back().name).second) {
      entry.at("name").refuse(fmt::format("two units have the name \"{}\"", units.back().name));
    }
  }
  if (units.empty()) place.refuse("has no unit");
  return units;
}

std::vector<plan::WindowUse> windows_of(const Place& place, const std::map<std::string, std::size_t>& units) {
  static const std::map<std::string, plan::WindowKind> kinds = {{"forward", plan::WindowKind::forward},
                                                                {"recompute", plan::WindowKind::recompute},
                                                                {"backward", plan::WindowKind::backward},
                                                                {"backward_input", plan::WindowKind::backward_input},
                                                                {"evaluate", plan::WindowKind::evaluate}};
  std::vector<plan::WindowUse> windows;
  for (const Place& entry : place.list(most_windows)) {
    std::string text = entry.text();
    const bool resumes = text.starts_with("resume ");
    if (resumes) text.erase(0, text.find(' ') + 1);
    const std::size_t blank = text.find(' ');
    const auto kind = kinds.find(text.substr(0, blank));
    const auto unit = blank == std::string::npos ? units.end() : units.find(text.substr(blank + 1));
    if (kind == kinds.end() || unit == units.end()) {
      entry.refuse(fmt::format(
          "takes forward, recompute, backward_input, backward or evaluate (behind resume, where it goes on) and the "
          "name of a unit, not \"{}\"",
          text.substr(0, most_quoted)));
    }
    windows.push_back({unit->second, kind->second, resumes});
  }
  return windows;
}

plan::Program program_of(const Place& place, const std::vector<plan::UnitSpec>& units) {
  place.require_keys({"micro_batch", "evaluation?"});
  std::map<std::string, std::size_t> numbers;
  for (std::size_t unit = 0; unit < units.size(); ++unit) numbers[units[unit].name] = unit;
  plan::Program program{windows_of(place.at("micro_batch"), numbers), {}};
  if (place.has("evaluation")) program.evaluation = windows_of(place.at("evaluation"), numbers);
  return program;
}

std::string content_of(const std::filesystem::path& path) {
  // Opening a pipe would wait for somebody to write to it.
  if (std::filesystem::exists(path) && !std::filesystem::is_regular_file(path)) {
    throw tessera::DataError(fmt::format("{}: is not a regular file", path.string()));
  }
  std::ifstream file(path, std::ios::binary);
  if (!file) throw tessera::DataError(fmt::format("{}: cannot be read", path.string()));
  std::string content(most_file_bytes + 1, '\0');
  file.read(content.data(), static_cast<std::streamsize>(content.size()));
  content.resize(static_cast<std::size_t>(file.gcount()));
  if (content.size() <= most_file_bytes) return content;
  throw tessera::DataError(fmt::format("{}: larger than {} bytes", path.string(), most_file_bytes));
}

// Depth is bounded before anything is built; a key that is there twice would hide one of its values.
Json parsed(const std::string& content, const std::string& file) {
  try {
    return Json::parse(content, {.depth = most_depth, .keys_may_repeat = false});
  } catch (const tools::JsonError& error) {
    throw tessera::DataError(fmt::format("{}: {}", file, printable(error.what())));
  }
}

}  // namespace

Model read_units(const std::filesystem::path& path) {
  const Json content = parsed(content_of(path), path.string());
  const Place file(content, path.string(), "");
  file.require_keys({"units", "program?"});
  Model model;
  model.units = units_of(file.at("units"));
  model.program =
      file.has("program") ? program_of(file.at("program"), model.units) : plan::Program::chain(model.units.size());
  return model;
}

}  // namespace models
