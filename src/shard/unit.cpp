// Parameters and buffers own no bytes, only facts: a unit gives them their full names and their places.
#include "tessera/shard/unit.hpp"

#include <fmt/format.h>

#include <utility>

#include "tessera/base/error.hpp"
#include "tessera/shard/optimizer.hpp"

namespace tessera {

Parameter::Parameter(Shape shape, Initial initial, ParameterOptions options)
    : shape_(std::move(shape)), elements_(element_count(shape_)), initial_(initial), options_(options) {}

Buffer::Buffer(Shape shape, Initial initial)
    : shape_(std::move(shape)), elements_(element_count(shape_)), initial_(initial) {}

Collective::Collective(std::size_t elements, const CollectiveOptions& options)
    : elements_(elements), options_(options) {
  if (elements == 0) throw UsageError("a collective of no elements: give it what each rank brings");
}

plan::CollectiveSpec Collective::spec() const {
  return {.name = name(),
          .kind = options_.kind,
          .type = options_.type,
          .elements = elements_,
          .forward = options_.forward,
          .backward = options_.backward,
          .backward_input = options_.backward_input,
          .evaluate = options_.evaluate,
          .axes = options_.axes,
          .of_granules = options_.of_granules,
          .buffers = options_.buffers,
          .overlaps = options_.overlaps};
}

// A unit that ends, or that was never finished, lets its tensors go; a tensor that ends leaves its name.
struct UnitMembership::Roll {
  const Unit* unit = nullptr;
  std::string gone;  // the first tensor that ended before the unit; empty: none did
};

UnitMembership::~UnitMembership() {
  if (roll_ && roll_->unit != nullptr && roll_->gone.empty()) roll_->gone = std::move(name_);
}

const Unit* UnitMembership::unit() const { return roll_ ? roll_->unit : nullptr; }

Unit::Unit(UnitOptions options, std::size_t index, std::span<const NamedParameter> parameters,
           std::span<const NamedBuffer> buffers, std::span<const NamedCollective> collectives)
    : options_(std::move(options)), index_(index), roll_(std::make_shared<UnitMembership::Roll>()) {
  enrol(parameters, parameters_);
  enrol(buffers, buffers_);
  enrol(collectives, collectives_);
  roll_->unit = this;
}

Unit::~Unit() { roll_->unit = nullptr; }

namespace {

// RFC 3629: no surrogates, nothing beyond U+10FFFF, no longer form than is needed.
bool is_utf8(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  for (std::size_t i = 0; i < text.size();) {
    const unsigned first = byte(i);
    const std::size_t size = first < 0x80 ? 1 : first >> 5 == 6 ? 2 : first >> 4 == 14 ? 3 : first >> 3 == 30 ? 4 : 0;
    if (size == 0 || i + size > text.size()) return false;
    std::uint32_t code = size == 1 ? first : first & (0xffu >> (size + 1));
    for (std::size_t k = 1; k < size; ++k) {
      if (byte(i + k) >> 6 != 2) return false;
      code = code << 6 | (byte(i + k) & 0x3fu);
    }
    constexpr std::uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    if (code < least[size] || code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) return false;
    i += size;
  }
  return true;
}

}  // namespace

template <typename Tensor>
void Unit::enrol(std::span<const Named<Tensor>> tensors, std::vector<Tensor*>& members) {
  for (const auto& [tensor_name, tensor] : tensors) {
    UnitMembership& membership = tensor->membership_;
    const bool mine = membership.roll_ == roll_;
    if (mine || membership.unit() != nullptr) {
      throw UsageError(fmt::format(
          "unit {}: \"{}\" already belongs to unit {} as \"{}\"; use one unit in several windows to share it", name(),
          tensor_name, mine ? name() : membership.unit()->name(), tensor->name()));
    }
    membership.roll_ = roll_;
    membership.index_ = members.size();
    membership.name_ = options_.prefix.value_or(name() + ".") + tensor_name;
    members.push_back(tensor);
    if (is_utf8(membership.name_)) continue;
    throw UsageError(fmt::format("unit {} of the model has a tensor of {} whose name is not UTF-8, as files have names",
                                 index_, to_string(tensor->shape())));
  }
}

void Unit::require_all_there() const {
  if (roll_->gone.empty()) return;
  throw UsageError(fmt::format(
      "unit {}: {} has moved or ended since it was added: a module keeps its address while a FullyShard has "
      "it (in a std::vector of modules: reserve, or hold them by std::unique_ptr)",
      name(), roll_->gone));
}

std::span<Parameter* const> Unit::parameters() const {
  require_all_there();
  return parameters_;
}

std::span<Buffer* const> Unit::buffers() const {
  require_all_there();
  return buffers_;
}

std::span<Collective* const> Unit::collectives() const {
  require_all_there();
  return collectives_;
}

template <typename Tensor>
std::size_t Unit::index_among(const Tensor& tensor, std::string_view what) const {
  const UnitMembership& membership = tensor.membership_;
  if (membership.unit() == this) return membership.index_;
  if (membership.unit() == nullptr) {
    throw UsageError(
        fmt::format("unit {}: a {} of shape {} was asked for that was never added to a model (or has moved since)",
                    name(), what, to_string(tensor.shape())));
  }
  throw UsageError(fmt::format("unit {}: {} {} belongs to unit {} and is not whole in this window", name(), what,
                               tensor.name(), membership.unit()->name()));
}

std::size_t Unit::index_of(const Parameter& parameter) const { return index_among(parameter, "parameter"); }
std::size_t Unit::index_of(const Buffer& buffer) const { return index_among(buffer, "buffer"); }
std::size_t Unit::index_of(const Collective& collective) const { return index_among(collective, "collective"); }

plan::UnitSpec Unit::spec() const {
  plan::UnitSpec spec{.name = name(),
                      .parameters = {},
                      .precision = options_.precision,
                      .prefetch = options_.prefetch,
                      .reshard_after_forward = options_.reshard_after_forward,
                      .recompute = options_.recompute,
                      .states_in = options_.states_in,
                      .masters_in = options_.masters_in,
                      .saved = options_.saved,
                      .saved_in = options_.saved_in,
                      .apart = options_.apart,
                      .tied = options_.tied,
                      .prefix = options_.prefix.value_or(name() + ".")};
  if (options_.optimizer) spec.optimizer_states = options_.optimizer->state_specs();
  for (const Parameter* parameter : parameters()) {
    spec.parameters.push_back({.name = parameter->name(),
                               .shape = parameter->shape(),
                               .optional = parameter->options().optional,
                               .frozen = parameter->options().frozen,
                               .slice = parameter->options().slice});
    if (parameter->options().slice) spec.apart = spec.apart | Axis::tensor;
  }
  for (const Buffer* buffer : buffers()) spec.buffers.push_back({buffer->name(), buffer->shape()});
  for (const Collective* collective : collectives()) spec.collectives.push_back(collective->spec());
  return spec;
}

}  // namespace tessera
