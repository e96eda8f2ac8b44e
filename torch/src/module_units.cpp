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

// Its keys say so as long as it lives, and autograd does not take it.
void require_normal(const at::Tensor& tensor, const std::string& name) {
  if (!tensor.is_inference()) return;
  throw UsageError(
      fmt::format("{} was made under torch::InferenceMode, where tensors are made that cannot be trained: make the "
                  "module outside of it",
                  name));
}

class Division {
 public:
  explicit Division(const std::set<std::string>& paths) : paths_(paths) {}

  void add(NamedTensor parameter, const std::string& path) {
    require_normal(parameter.tensor, "parameter " + parameter.name);
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
    require_normal(buffer.tensor, "buffer " + buffer.name);
    const auto found = std::find_if(units_.begin(), units_.end(), [&](const auto& unit) { return unit.name == path; });
    (found != units_.end() ? *found : units_.front()).buffers.push_back(std::move(buffer));
  }

  std::vector<UnitMembers> units_;

 private:
  UnitMembers& members_of(const std::string& path) {
    if (path == no_unit) {
      if (!units_.empty() && last_path_ == no_unit) return units_.back();
      units_.push_back({.name = next_root(), .parameters = {}, .buffers = {}});
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

  // A submodule may be called root, too.
  std::string next_root() {
    std::string name;
    do {
      ++roots_;
      name = roots_ == 1 ? "root" : fmt::format("root.{}", roots_);
    } while (paths_.contains(name));
    return name;
  }

  const std::set<std::string>& paths_;
  std::string last_path_ = no_unit;
  int roots_ = 0;
};

// Returns of torch's list each tensor that is defined and not in `seen` yet, by its first name.
template <typename List>
std::vector<NamedTensor> distinct(const List& list, std::unordered_set<const void*>& seen) {
  std::vector<NamedTensor> tensors;
  for (const auto& named : list) {
    if (!named.value().defined() || !seen.insert(named.value().unsafeGetTensorImpl()).second) continue;
    tensors.push_back({named.key(), named.value()});
  }
  return tensors;
}

// A module's list itself, which torch shows to derived classes.
struct OwnParameters : ::torch::nn::Module {
  static const auto& of(const ::torch::nn::Module& module) { return module.*(&OwnParameters::parameters_); }
};

}  // namespace

bool has_only(const ::torch::nn::Module& module, const std::function<bool(const at::Tensor&)>& known) {
  for (const auto& parameter : OwnParameters::of(module)) {
    if (parameter.value().defined() && !known(parameter.value())) return false;
  }
  const auto children = module.children();
  return std::all_of(children.begin(), children.end(), [&](const auto& child) { return has_only(*child, known); });
}

std::vector<NamedTensor> distinct_parameters(const ::torch::nn::Module& module) {
  std::unordered_set<const void*> seen;
  return distinct(module.named_parameters(), seen);
}

std::vector<NamedTensor> distinct_buffers(const ::torch::nn::Module& module) {
  std::unordered_set<const void*> seen;
  return distinct(module.named_buffers(), seen);
}

std::vector<UnitMembers> divide(const ::torch::nn::Module& module, const Units& units) {
  const std::set<std::string> paths = distinct_paths(units(module));
  Division division(paths);
  std::unordered_set<const void*> seen;
  for (NamedTensor& parameter : distinct(module.named_parameters(), seen)) {
    const std::string path = unit_of(parameter.name, paths);
    division.add(std::move(parameter), path);
  }
  if (division.units_.empty()) throw UsageError("the module has no parameters");
  // One that is a parameter as well is in its unit already, so both lists are seen by one set.
  for (NamedTensor& buffer : distinct(module.named_buffers(), seen)) {
    const std::string path = unit_of(buffer.name, paths);
    division.add_buffer(std::move(buffer), path);
  }
  return std::move(division.units_);
}

}  // namespace tessera::torch
