// Scratch memory: the loss scale, the user's activations, and behind them the tensors of the unit whose window is open.
#include "shard/recorded_pass.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "tessera/base/error.hpp"
#include "tessera/kernels/elementwise.hpp"

namespace tessera {

using plan::WindowKind;

namespace {

constexpr Bytes alignment{512};
constexpr float no_scaling = 1.0f;

}  // namespace

RecordedPass::RecordedPass(const Subject& subject)
    : subject_(subject),
      scratch_(subject.world.device(), Bytes(0)),
      stream_(subject.world.device(), StreamOptions{.name = fmt::format("r{}.recording", subject.world.rank()),
                                                    .mode = StreamMode::immediate,
                                                    .wait_timeout = 4 * subject.world.timeout()}) {
  Bytes most;
  for (const auto& unit : subject_.units) {
    places_.push_back(places_of(*unit));
    most = std::max(most, places_.back().end);
  }
  scratch_ = Arena(subject_.world.device(), alignment + round_up(subject_.activations, alignment) + most);
  loss_scale_ = reinterpret_cast<const float*>(scratch_.data());
  kernels::copy(stream_, scratch_.data(), &no_scaling, Bytes(sizeof no_scaling));
  link_ = std::make_shared<WindowLink>(WindowLink{.host = this, .rank = subject_.world.rank(), .units = {}});
  for (const auto& unit : subject_.units) link_->units.push_back(unit->name());
}

RecordedPass::~RecordedPass() { link_->host = nullptr; }

const Precision& RecordedPass::precision_of(const Unit& unit) const {
  return unit.options().precision ? *unit.options().precision : subject_.precision;
}

RecordedPass::Places RecordedPass::places_of(const Unit& unit) const {
  Places places{.parameters = {}, .gradients = {}, .buffers = {}, .end = {}};
  const auto place = [&](std::vector<Bytes>& list, Bytes size) {
    list.push_back(places.end);
    places.end = round_up(places.end + size, alignment);
  };
  const Precision& types = precision_of(unit);
  for (const Parameter* each : unit.parameters()) {
    place(places.parameters, size_of(types.parameter) * each->elements());
    place(places.gradients, size_of(types.gradient) * each->elements());
  }
  for (const Buffer* each : unit.buffers()) place(places.buffers, size_of(DType::fp32) * each->elements());
  return places;
}

std::vector<plan::WindowUse> RecordedPass::run(const std::function<void()>& pass) {
  uses_.clear();
  pass();
  stream_.synchronize();
  if (current_) throw UsageError(fmt::format("{} is still open where its pass ends", describe()));
  if (uses_.empty()) {
    throw UsageError(fmt::format(
        "the pass of program \"{}\" opened no window: it calls forward and backward of modules", subject_.program));
  }
  return std::exchange(uses_, {});
}

Window RecordedPass::open(const plan::WindowUse& use) {
  if (current_) {
    throw UsageError(fmt::format("the {} window of unit {} cannot open: {} is still open, close it first",
                                 to_string(use.kind), link_->units[use.unit], describe()));
  }
  uses_.push_back(use);
  current_ = use;
  kernels::fill_zero(stream_, tensor_at(Bytes(0)), places_[use.unit].end);  // what an earlier window wrote
  return Window(link_, use, ++serial_);
}

void RecordedPass::close() {
  for (Stream* other : std::exchange(joined_, {})) other->synchronize();
  current_.reset();
}

void RecordedPass::abandon(std::string_view what) noexcept {
  try {
    subject_.world.abort(current_ ? fmt::format("{}: {}", describe(), what) : std::string(what));
  } catch (...) {
    subject_.world.abort(what);
  }
}

std::span<std::byte> RecordedPass::activation_memory() {
  if (subject_.activations == Bytes(0)) return {};
  return scratch_.range(alignment, subject_.activations);
}

// `place`: behind the loss scale and the activations.
std::byte* RecordedPass::tensor_at(Bytes place) {
  return scratch_.data() + (alignment + round_up(subject_.activations, alignment) + place).count();
}

std::string RecordedPass::describe() const {
  return fmt::format("rank {}, recording program \"{}\", the {} window of unit {}", subject_.world.rank(),
                     subject_.program, to_string(kind()), unit().name());
}

bool RecordedPass::trains(const Parameter& parameter) const {
  unit().index_of(parameter);
  if (parameter.options().frozen) return false;
  const auto& trained = subject_.trains;
  return !trained || std::find(trained->begin(), trained->end(), &unit()) != trained->end();
}

WindowView::View RecordedPass::parameter(const Parameter& parameter, DType type) {
  const std::size_t index = unit().index_of(parameter);
  const DType actual = precision_of(unit()).parameter;
  if (type != actual) {
    throw UsageError(fmt::format("{}: parameter {} is {} here, not {}", describe(), parameter.name(), to_string(actual),
                                 to_string(type)));
  }
  return {tensor_at(places_[current_->unit].parameters[index]), parameter.elements()};
}

WindowView::View RecordedPass::gradient(const Parameter& parameter, DType type, GradientMode) {
  const std::size_t index = unit().index_of(parameter);
  if (kind() != WindowKind::backward || !trains(parameter)) {
    throw UsageError(fmt::format("{}: {} has no gradient here", describe(), parameter.name()));
  }
  const DType actual = precision_of(unit()).gradient;
  if (type != actual) {
    throw UsageError(fmt::format("{}: the gradient of {} is {} here, not {}", describe(), parameter.name(),
                                 to_string(actual), to_string(type)));
  }
  return {tensor_at(places_[current_->unit].gradients[index]), parameter.elements()};
}

std::span<float> RecordedPass::values(const Buffer& buffer) {
  const std::size_t index = unit().index_of(buffer);
  return {reinterpret_cast<float*>(tensor_at(places_[current_->unit].buffers[index])), buffer.elements()};
}

void RecordedPass::join(Stream& other) {
  stream_.synchronize();
  joined_.push_back(&other);
}

}  // namespace tessera
