// Read strictly: unknown keys, and numbers that no machine has, are errors that say where they stand.
#include "machine/machine.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <initializer_list>
#include <iterator>
#include <set>

#include "machine/known_machines.hpp"
#include "tessera/base/error.hpp"

namespace tools {

double Curve::at(double size) const {
  if (size <= points_.front().first) return points_.front().second;
  for (std::size_t i = 1; i < points_.size(); ++i) {
    const auto [left, low] = points_[i - 1];
    const auto [right, high] = points_[i];
    if (size < right) return low + (high - low) * std::log(size / left) / std::log(right / left);
  }
  return points_.back().second;
}

Curve Curve::times(double factor) const {
  Curve result = *this;
  for (auto& point : result.points_) point.second *= factor;
  return result;
}

double moved_share(CollectiveAlgorithm algorithm, double ranks, bool sums) {
  if (sums && algorithm == CollectiveAlgorithm::direct) return (ranks + 1) / ranks;
  return (ranks - 1) / ranks;
}

namespace {

constexpr std::size_t most_file_bytes = std::size_t{1} << 20;
constexpr double most_rate = 1e21;
constexpr std::pair<const char*, tessera::DType> types[] = {
    {"fp32", tessera::DType::fp32}, {"bf16", tessera::DType::bf16}, {"fp16", tessera::DType::fp16}};
constexpr std::pair<const char*, ConvolutionClass> convolution_classes[] = {
    {"pointwise", ConvolutionClass::pointwise}, {"wide", ConvolutionClass::wide}, {"narrow", ConvolutionClass::narrow}};
constexpr std::pair<const char*, CollectiveAlgorithm> algorithms[] = {{"direct", CollectiveAlgorithm::direct},
                                                                      {"ring", CollectiveAlgorithm::ring},
                                                                      {"two-level", CollectiveAlgorithm::two_level}};

// An object of the file, and where it stands.
class Place {
 public:
  Place(const Json& object, std::string where, std::initializer_list<std::string_view> keys)
      : object_(object), where_(std::move(where)) {
    if (!object_.is_object()) refuse("takes an object");
    for (const JsonMember& member : object_.members()) {
      if (std::find(keys.begin(), keys.end(), member.key) == keys.end()) {
        refuse(fmt::format("unknown key \"{}\"; it has {}", member.key, fmt::join(keys, ", ")));
      }
    }
  }

  [[noreturn]] void refuse(const std::string& why) const {
    throw tessera::DataError(fmt::format("{}: {}", where_, why));
  }
  bool has(const char* key) const { return object_.contains(key); }
  const Json& at(const char* key) const {
    if (!has(key)) refuse(fmt::format("\"{}\" is missing", key));
    return object_.at(key);
  }
  std::string where(const char* key) const { return fmt::format("{}: {}", where_, key); }
  std::string text(const char* key) const {
    if (!at(key).is_text()) refuse(fmt::format("\"{}\" takes a text", key));
    return at(key).text();
  }
  bool truth(const char* key) const {
    if (!has(key)) return false;
    if (!at(key).is_bool()) refuse(fmt::format("\"{}\" takes true or false", key));
    return at(key).truth();
  }
  double number(const char* key, double least, double most) const {
    return checked(at(key), fmt::format("\"{}\"", key), least, most);
  }
  std::size_t whole(const char* key, double least, double most) const {
    const double value = number(key, least, most);
    if (value != std::floor(value)) refuse(fmt::format("\"{}\" takes a whole number, not {}", key, value));
    return static_cast<std::size_t>(value);
  }
  double number_or(const char* key, double otherwise, double least, double most) const {
    return has(key) ? number(key, least, most) : otherwise;
  }
  // One rate, or a list of pairs of a size and a rate, sizes growing.
  Curve curve(const char* key) const {
    const Json& value = at(key);
    if (!value.is_array()) return Curve(number(key, 1, most_rate));
    std::vector<std::pair<double, double>> points;
    for (const Json& point : value.entries()) {
      if (!point.is_array() || point.size() != 2) refuse(fmt::format("\"{}\" takes pairs of a size and a rate", key));
      const std::string name = fmt::format("\"{}\"", key);
      points.emplace_back(checked(point.entries()[0], name, 1, most_rate),
                          checked(point.entries()[1], name, 1, most_rate));
      if (points.size() > 1 && points[points.size() - 2].first >= points.back().first) {
        refuse(fmt::format("\"{}\": each size is larger than the one before it", key));
      }
    }
    if (points.empty()) refuse(fmt::format("\"{}\" is empty", key));
    return Curve(std::move(points));
  }

 private:
  double checked(const Json& value, const std::string& name, double least, double most) const {
    try {
      const double number = value.number();
      if (number >= least && number <= most) return number;
    } catch (const JsonError&) {
      // Not a number at all: refused below.
    }
    refuse(fmt::format("{} takes a number from {:g} to {:g}, not {}", name, least, most,
                       value.dump(Json::Characters::ascii).substr(0, 40)));
  }

  const Json& object_;
  std::string where_;
};

Link link_of(const Json& json, const std::string& where) {
  const Place place(json, where, {"latency", "bandwidth", "summing"});
  return {.latency = place.number("latency", 0, 10),
          .bandwidth = place.curve("bandwidth"),
          .summing = place.has("summing") ? place.curve("summing") : Curve()};
}

// Convolutions stand by type, by class and by direction: a type has all of them, or none.
void read_convolutions(const Place& machine, Machine& to) {
  const Place all(machine.at("convolutions"), machine.where("convolutions"), {"fp32", "bf16", "fp16"});
  for (const auto& [type_name, type] : types) {
    if (!all.has(type_name)) continue;
    const Place classes(all.at(type_name), all.where(type_name), {"pointwise", "wide", "narrow"});
    for (const auto& [name, which] : convolution_classes) {
      const Place rates(classes.at(name), classes.where(name), {"forward", "backward"});
      to.convolutions[static_cast<std::size_t>(type)][static_cast<std::size_t>(which)] = {
          .forward = rates.curve("forward"), .backward = rates.curve("backward")};
    }
  }
}

CollectiveAlgorithm algorithm_of(const Place& place) {
  const std::string name = place.text("collectives");
  for (const auto& [known, algorithm] : algorithms) {
    if (name == known) return algorithm;
  }
  place.refuse(fmt::format("\"collectives\" takes direct, ring or two-level, not \"{}\"", name));
}

}  // namespace

Machine machine_from_json(const Json& json, const std::string& where) {
  const Place place(
      json, where,
      {"tessera_machine", "name",     "about",       "ranks_per_host", "peak",        "products", "convolutions",
       "memory",          "to_host",  "to_disk",     "host_update",    "host_memory", "launch",   "processors",
       "all_busy",        "slowdown", "one_network", "collectives",    "host",        "network",  "immediate_compute"});
  if (place.at("tessera_machine") != Json(1)) place.refuse("\"tessera_machine\" takes 1, the format's version");
  Machine machine;
  machine.name = place.text("name");
  machine.about = place.text("about");
  machine.ranks_per_host = place.whole("ranks_per_host", 1, 1024);
  machine.memory = place.curve("memory");
  if (place.has("to_host")) machine.to_host = place.curve("to_host");
  if (place.has("to_disk")) machine.to_disk = place.curve("to_disk");
  if (place.has("host_update")) machine.host_update = place.curve("host_update");
  if (place.has("host_memory")) machine.host_memory = place.curve("host_memory");
  machine.launch = place.number_or("launch", 0, 0, 1);
  if (place.has("processors")) machine.processors = place.number("processors", 0.01, 65536);
  machine.all_busy = place.number_or("all_busy", 1, 1, 100);
  machine.immediate_compute = place.truth("immediate_compute");
  machine.slowdown = place.number_or("slowdown", 1, 1, 100);
  machine.one_network = place.truth("one_network");
  machine.algorithm = algorithm_of(place);
  machine.host = link_of(place.at("host"), place.where("host"));
  if (place.has("network")) machine.network = link_of(place.at("network"), place.where("network"));
  const Place products(place.at("products"), place.where("products"), {"fp32", "bf16", "fp16"});
  const Place peak(place.at("peak"), place.where("peak"), {"fp32", "bf16", "fp16"});
  for (const auto& [name, type] : types) {
    const auto index = static_cast<std::size_t>(type);
    if (products.has(name)) machine.products[index] = products.curve(name);
    if (peak.has(name)) machine.peak[index] = peak.number(name, 1, most_rate);
  }
  if (place.has("convolutions")) read_convolutions(place, machine);
  return machine;
}

namespace {

Json parsed(std::string_view text, const std::string& where) {
  try {
    return Json::parse(text, {.depth = 8, .keys_may_repeat = false});
  } catch (const JsonError& error) {
    throw tessera::DataError(fmt::format("{}: is no machine: {}", where, error.what()));
  }
}

Json json_of(const Curve& curve) {
  if (curve.points().size() == 1) return curve.points().front().second;
  Json points = Json::array();
  for (const auto& [size, rate] : curve.points()) {
    Json point = Json::array();
    point.push_back(size);
    point.push_back(rate);
    points.push_back(point);
  }
  return points;
}

Json json_of(const Link& link) {
  Json json = {{"latency", link.latency}, {"bandwidth", json_of(link.bandwidth)}};
  if (!link.summing.empty()) json["summing"] = json_of(link.summing);
  return json;
}

Json json_of(const ConvolutionClasses& classes) {
  Json json = Json::object();
  for (const auto& [name, which] : convolution_classes) {
    const ConvolutionRates& rates = classes[static_cast<std::size_t>(which)];
    json[name] = {{"forward", json_of(rates.forward)}, {"backward", json_of(rates.backward)}};
  }
  return json;
}

}  // namespace

Json json_of(const Machine& machine) {
  Json json = {{"tessera_machine", 1},
               {"name", machine.name},
               {"about", machine.about},
               {"ranks_per_host", machine.ranks_per_host}};
  Json peak = Json::object(), products = Json::object(), convolutions = Json::object();
  for (const auto& [name, type] : types) {
    const auto index = static_cast<std::size_t>(type);
    if (machine.peak[index] > 0) peak[name] = machine.peak[index];
    if (!machine.products[index].empty()) products[name] = json_of(machine.products[index]);
    if (!machine.convolutions[index][0].forward.empty()) convolutions[name] = json_of(machine.convolutions[index]);
  }
  json["peak"] = peak;
  json["products"] = products;
  if (convolutions.size() > 0) json["convolutions"] = convolutions;
  json["memory"] = json_of(machine.memory);
  if (!machine.to_host.empty()) json["to_host"] = json_of(machine.to_host);
  if (!machine.to_disk.empty()) json["to_disk"] = json_of(machine.to_disk);
  if (!machine.host_update.empty()) json["host_update"] = json_of(machine.host_update);
  if (!machine.host_memory.empty()) json["host_memory"] = json_of(machine.host_memory);
  json["launch"] = machine.launch;
  if (machine.processors) json["processors"] = *machine.processors;
  if (machine.all_busy != 1) json["all_busy"] = machine.all_busy;
  json["immediate_compute"] = machine.immediate_compute;
  json["slowdown"] = machine.slowdown;
  json["one_network"] = machine.one_network;
  for (const auto& [name, algorithm] : algorithms) {
    if (algorithm == machine.algorithm) json["collectives"] = name;
  }
  json["host"] = json_of(machine.host);
  if (machine.network) json["network"] = json_of(*machine.network);
  return json;
}

std::vector<std::string> machine_names() {
  std::vector<std::string> names;
  for (const auto& [name, text] : known_machines) names.emplace_back(name);
  return names;
}

Machine find_machine(const std::string& name_or_path) {
  for (const auto& [name, text] : known_machines) {
    if (name == name_or_path) return machine_from_json(parsed(text, std::string(name)), std::string(name));
  }
  if (!std::filesystem::is_regular_file(name_or_path)) {
    throw tessera::UsageError(fmt::format("--machine takes {}, or a file that tessera calibrate wrote, not \"{}\"",
                                          fmt::join(machine_names(), ", "), name_or_path));
  }
  if (std::filesystem::file_size(name_or_path) > most_file_bytes) {
    throw tessera::DataError(fmt::format("{}: is no machine: too large", name_or_path));
  }
  std::ifstream file(name_or_path, std::ios::binary);
  if (!file) throw tessera::DataError(fmt::format("{}: cannot be read", name_or_path));
  return machine_from_json(parsed(std::string(std::istreambuf_iterator<char>(file), {}), name_or_path), name_or_path);
}

// ---- what if ----

namespace {

double factor_of(std::string_view text, const std::string& change) {
  double factor = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), factor);
  const std::string_view rest(end, static_cast<std::size_t>(text.data() + text.size() - end));
  const bool is_zero = factor == 0 && (rest.empty() || rest == "x");
  const bool is_factor = rest == "x" && factor >= 1e-6 && factor <= 1e6;
  if (error == std::errc() && (is_factor || is_zero)) return factor;
  throw tessera::UsageError(
      fmt::format("--whatif takes factors from 1e-6x to 1e6x, such as bandwidth=2x, or latency=0, not \"{}\"", change));
}

void change(Machine& machine, const std::string& name, double factor, const std::string& text) {
  const auto positive = [&] {
    if (factor > 0) return;
    throw tessera::UsageError(fmt::format("--whatif {}: nothing is done at a rate of 0", text));
  };
  const auto for_links = [&](const std::function<void(Link&)>& body) {
    body(machine.host);
    if (machine.network) body(*machine.network);
  };
  if (name == "bandwidth") {
    positive();
    for_links([&](Link& link) {
      link.bandwidth = link.bandwidth.times(factor);
      link.summing = link.summing.times(factor);
    });
  } else if (name == "latency") {
    for_links([&](Link& link) { link.latency *= factor; });
  } else if (name == "compute") {
    positive();
    for (Curve& curve : machine.products) curve = curve.times(factor);
    for (ConvolutionClasses& classes : machine.convolutions) {
      for (ConvolutionRates& rates : classes) rates = {rates.forward.times(factor), rates.backward.times(factor)};
    }
    for (double& peak : machine.peak) peak *= factor;
    machine.memory = machine.memory.times(factor);
    machine.host_memory = machine.host_memory.times(factor);
  } else {
    throw tessera::UsageError(fmt::format("--whatif takes bandwidth, latency and compute, not \"{}\"", text));
  }
}

}  // namespace

Machine what_if(Machine machine, const std::string& changes) {
  std::set<std::string> changed;
  for (std::size_t begin = 0; begin <= changes.size();) {
    const std::size_t end = std::min(changes.find(',', begin), changes.size());
    const std::string text = changes.substr(begin, end - begin);
    const std::size_t equals = std::min(text.find('='), text.size());
    const std::string_view value = std::string_view(text).substr(std::min(equals + 1, text.size()));
    const std::string name = text.substr(0, equals);
    change(machine, name, factor_of(value, text), text);
    if (!changed.insert(name).second) throw tessera::UsageError(fmt::format("--whatif changes {} twice", name));
    begin = end + 1;
  }
  return machine;
}

}  // namespace tools
