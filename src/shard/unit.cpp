// Gives parameters their full names and their places.
#include "tessera/shard/unit.hpp"

#include <fmt/format.h>

#include "tessera/base/error.hpp"

namespace tessera {

Unit::Unit(std::string name, std::size_t index, std::span<const NamedParameter> parameters)
    : name_(std::move(name)), index_(index) {
  for (const NamedParameter& named : parameters) {
    Parameter& parameter = *named.parameter;
    if (parameter.unit_ != nullptr) {
      throw UsageError(
          fmt::format("unit {}: parameter \"{}\" already belongs to unit {} as \"{}\"; use one unit in several "
                      "windows to share it",
                      name_, named.name, parameter.unit_->name(), parameter.name_));
    }
    parameter.name_ = fmt::format("{}.{}", name_, named.name);
    parameter.unit_ = this;
    parameter.index_ = parameters_.size();
    parameters_.push_back(&parameter);
  }
}

std::size_t Unit::index_of(const Parameter& parameter) const {
  if (parameter.unit_ == this) return parameter.index_;
  if (parameter.unit_ == nullptr) {
    throw UsageError(fmt::format("unit {}: a parameter of shape {} was asked for that was never added to a model",
                                 name_, to_string(parameter.shape())));
  }
  throw UsageError(fmt::format("unit {}: parameter {} belongs to unit {} and is not whole in this window", name_,
                               parameter.name(), parameter.unit_->name()));
}

plan::UnitSpec Unit::spec() const {
  plan::UnitSpec spec{name_, {}};
  for (const Parameter* parameter : parameters_) {
    spec.parameters.push_back({parameter->name(), parameter->shape(), parameter->options().optional});
  }
  return spec;
}

}  // namespace tessera
