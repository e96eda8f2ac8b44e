// Gives parameters and buffers their full names and their places.
#include "tessera/shard/unit.hpp"

#include <fmt/format.h>

#include <utility>

#include "tessera/base/error.hpp"

namespace tessera {

namespace {

template <typename Tensor>
void require_free(const Tensor& tensor, const Unit* owner, const std::string& unit, const std::string& name) {
  if (owner == nullptr) return;
  throw UsageError(
      fmt::format("unit {}: \"{}\" already belongs to unit {} as \"{}\"; use one unit in several windows to share it",
                  unit, name, owner->name(), tensor.name()));
}

}  // namespace

Unit::Unit(UnitOptions options, std::size_t index, std::span<const NamedParameter> parameters,
           std::span<const NamedBuffer> buffers)
    : options_(std::move(options)), index_(index) {
  for (const NamedParameter& named : parameters) {
    Parameter& parameter = *named.parameter;
    require_free(parameter, parameter.unit_, name(), named.name);
    parameter.name_ = fmt::format("{}.{}", name(), named.name);
    parameter.unit_ = this;
    parameter.index_ = parameters_.size();
    parameters_.push_back(&parameter);
  }
  for (const NamedBuffer& named : buffers) {
    Buffer& buffer = *named.buffer;
    require_free(buffer, buffer.unit_, name(), named.name);
    buffer.name_ = fmt::format("{}.{}", name(), named.name);
    buffer.unit_ = this;
    buffer.index_ = buffers_.size();
    buffers_.push_back(&buffer);
  }
}

std::size_t Unit::index_of(const Parameter& parameter) const {
  if (parameter.unit_ == this) return parameter.index_;
  if (parameter.unit_ == nullptr) {
    throw UsageError(fmt::format("unit {}: a parameter of shape {} was asked for that was never added to a model",
                                 name(), to_string(parameter.shape())));
  }
  throw UsageError(fmt::format("unit {}: parameter {} belongs to unit {} and is not whole in this window", name(),
                               parameter.name(), parameter.unit_->name()));
}

std::size_t Unit::index_of(const Buffer& buffer) const {
  if (buffer.unit_ == this) return buffer.index_;
  if (buffer.unit_ == nullptr) {
    throw UsageError(fmt::format("unit {}: a buffer of shape {} was asked for that was never added to a model", name(),
                                 to_string(buffer.shape())));
  }
  throw UsageError(fmt::format("unit {}: buffer {} belongs to unit {}", name(), buffer.name(), buffer.unit_->name()));
}

plan::UnitSpec Unit::spec() const {
  plan::UnitSpec spec{.name = name(), .parameters = {}, .buffers = {}, .precision = options_.precision};
  for (const Parameter* parameter : parameters_) {
    spec.parameters.push_back({.name = parameter->name(),
                               .shape = parameter->shape(),
                               .optional = parameter->options().optional,
                               .frozen = parameter->options().frozen});
  }
  for (const Buffer* buffer : buffers_) spec.buffers.push_back({buffer->name(), buffer->shape()});
  return spec;
}

}  // namespace tessera
