// Walking through a module's tensors in the order of declaration.
#include "src/module_units.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <unordered_set>
#include <utility>

#include "tessera/base/error.hpp"

namespace tessera::torch {

namespace {

constexpr const char* no_unit = "";

std::set<std::string> distinct_paths(std::vector<std::string> paths) {
  std::set<std::string> distinct;
  for (std::string& path : paths) {
    if (path.empty()) throw UsageError("a unit needs the path of a submodule; the module itself has none");
    if (!distinct.insert(path).second) throw UsageError(fmt::format("unit \"{}\" is named twice", path));
  }
  return distinct;
}

// The unit furthest down that holds the tensor; no_unit where none does.
std::string unit_of(const std::string& tensor, const std::set<std::string>& units) {
  for (std::size_t dot = tensor.rfind('.'); dot != std::string::npos && dot > 0; dot = tensor.rfind('.', dot - 1)) {
    if (units.contains(tensor.substr(0, dot))) return tensor.substr(0, dot);
  }
  return no_unit;
}

class Division {
 public:
  void add(NamedTensor parameter, const std::string& path) {
    const at::Device device = parameter.tensor.device();
    if (parameter.tensor.scalar_type() != at::kFloat || !(device.is_cpu() || device.is_meta())) {
      throw UsageError(fmt::format(
          "parameter {} is {} on {}: parameters are handed over in fp32 and on the CPU; the precision of windows is an "
          "option",
          parameter.name, c10::toString(parameter.tensor.scalar_type()), device.str()));
    }
    members_of(path).parameters.push_back(std::move(parameter));
  }

  void add_buffer(NamedTensor buffer, const std::string& path) {
    const auto found = std::find_if(units_.begin(), units_.end(), [&](const auto& unit) { return unit.name == path; });
    (found != units_.end() ? *found : units_.front()).buffers.push_back(std::move(buffer));
  }

  std::vector<UnitMembers> units_;

 private:
  UnitMembers& members_of(const std::string& path) {
    if (path == no_unit) {
      if (!units_.empty() && last_path_ == no_unit) return units_.back();
      ++roots_;
      units_.push_back(
          {.name = roots_ == 1 ? "root" : fmt::format("root.{}", roots_), .parameters = {}, .buffers = {}});
    } else {
      last_path_ = path;
      const auto known =
          std::find_if(units_.begin(), units_.end(), [&](const auto& unit) { return unit.name == path; });
      if (known != units_.end()) return *known;
      units_.push_back({.name = path, .parameters = {}, .buffers = {}});
    }
    last_path_ = path;
    return units_.back();
  }

  std::string last_path_ = no_unit;
  int roots_ = 0;
};

}  // namespace

std::vector<NamedTensor> distinct_parameters(const ::torch::nn::Module& module) {
  std::vector<NamedTensor> distinct;
  std::unordered_set<const void*> seen;
  for (const auto& named : module.named_parameters()) {
    if (!named.value().defined() || !seen.insert(named.value().unsafeGetTensorImpl()).second) continue;
    distinct.push_back({named.key(), named.value()});
  }
  return distinct;
}

std::vector<UnitMembers> divide(const ::torch::nn::Module& module, const Units& units) {
  const std::set<std::string> paths = distinct_paths(units(module));
  Division division;
  for (NamedTensor& parameter : distinct_parameters(module)) {
    const std::string path = unit_of(parameter.name, paths);
    division.add(std::move(parameter), path);
  }
  if (division.units_.empty()) throw UsageError("the module has no parameters");
  for (const auto& named : module.named_buffers()) {
    if (!named.value().defined() || named.value().scalar_type() != at::kFloat) continue;
    division.add_buffer({named.key(), named.value()}, unit_of(named.key(), paths));
  }
  return std::move(division.units_);
}

}  // namespace tessera::torch
