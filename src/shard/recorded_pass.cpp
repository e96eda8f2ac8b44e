// Scratch memory: the loss scale and the user's activations, and for each open window the tensors of its unit.
#include "shard/recorded_pass.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "tessera/base/error.hpp"
#include "tessera/kernels/elementwise.hpp"
#include "tessera/plan/memory.hpp"

namespace tessera {

using plan::WindowKind;

namespace {

constexpr Bytes alignment{512};
constexpr float no_scaling = 1.0f;

}  // namespace

RecordedPass::RecordedPass(const Subject& subject)
    : subject_(subject),
      memory_(subject.world.device(), alignment + subject.activations),
      stream_(subject.world.device(), StreamOptions{.name = fmt::format("r{}.recording", subject.world.rank()),
                                                    .mode = StreamMode::immediate,
                                                    .wait_timeout = 4 * subject.world.timeout()}) {
  for (const auto& unit : subject_.units) {
    places_.push_back(places_of(*unit));
    largest_ = std::max(largest_, places_.back().end);
  }
  loss_scale_ = reinterpret_cast<const float*>(memory_.data());
  kernels::copy(stream_, memory_.data(), &no_scaling, Bytes(sizeof no_scaling));
  link_ = std::make_shared<WindowLink>(link_to(*this, subject_.world.rank(), subject_.units, subject_.modules));
}

RecordedPass::~RecordedPass() { link_->host = nullptr; }

const Precision& RecordedPass::precision_of(const Unit& unit) const {
  return unit.options().precision ? *unit.options().precision : subject_.precision;
}

RecordedPass::Places RecordedPass::places_of(const Unit& unit) const {
  Places places{.parameters = {}, .gradients = {}, .buffers = {}, .exchanges = {}, .end = {}};
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
  const auto ranks = static_cast<std::size_t>(subject_.world.size());
  for (const Exchange* each : unit.exchanges()) {
    place(places.exchanges, plan::exchange_value_size * (each->values() * ranks));
  }
  return places;
}

std::span<std::byte> RecordedPass::activation_memory() {
  if (subject_.activations == Bytes(0)) return {};
  return memory_.range(alignment, subject_.activations);
}

// ---- the pass ----

std::vector<plan::WindowUse> RecordedPass::run(const std::function<void()>& pass) {
  uses_.clear();
  pass();
  stream_.synchronize();
  kept_.clear();
  kept_calls().clear();
  if (depth_ > 0) {
    throw UsageError(fmt::format("{} is still open where its pass ends", windows_[depth_ - 1]->describe()));
  }
  if (uses_.empty()) {
    throw UsageError(fmt::format(
        "the pass of program \"{}\" opened no window: it calls forward and backward of modules", subject_.program));
  }
  return std::exchange(uses_, {});
}

Window RecordedPass::open(const plan::WindowUse& use) {
  for (std::size_t depth = 0; depth < depth_; ++depth) {
    if (windows_[depth]->use().unit != use.unit) continue;
    throw UsageError(fmt::format("the {} window of unit {} cannot open: {} is still open, close it first",
                                 to_string(use.kind), link_->units[use.unit], windows_[depth]->describe()));
  }
  if (depth_ == windows_.size()) windows_.push_back(std::make_unique<Scratch>(*this, largest_));
  uses_.push_back(use);
  windows_[depth_++]->open(use, ++serial_);
  return Window(link_, use, serial_);
}

WindowView* RecordedPass::open_window(std::size_t serial) {
  for (std::size_t depth = 0; depth < depth_; ++depth) {
    if (windows_[depth]->is(serial)) return windows_[depth].get();
  }
  return nullptr;
}

// The others bring zeros: a rank that records meets nobody.
Contributions RecordedPass::exchange(std::size_t, const Exchange& exchange) {
  return {.first = windows_[depth_ - 1]->contribution(exchange).data(),
          .values = exchange.values(),
          .replicas = 1,
          .ranks_of_replica = static_cast<std::uint32_t>(subject_.world.size())};
}

void RecordedPass::close(std::size_t serial) {
  Scratch& innermost = *windows_[depth_ - 1];
  if (!innermost.is(serial)) {
    throw UsageError(
        fmt::format("a window around it cannot close: {} is still open, close it first", innermost.describe()));
  }
  innermost.close();
  if (--depth_ == 0) return;
  const plan::WindowUse& around = windows_[depth_ - 1]->use();
  uses_.push_back({around.unit, around.kind, true});
}

void RecordedPass::abandon(std::string_view what) noexcept {
  try {
    subject_.world.abort(depth_ > 0 ? fmt::format("{}: {}", windows_[depth_ - 1]->describe(), what)
                                    : std::string(what));
  } catch (...) {
    subject_.world.abort(what);
  }
}

// ---- its windows ----

RecordedPass::Scratch::Scratch(RecordedPass& pass, Bytes size)
    : pass_(pass), memory_(pass.subject_.world.device(), size) {}

void RecordedPass::Scratch::open(const plan::WindowUse& use, std::size_t serial) {
  use_ = use;
  serial_ = serial;
  kernels::fill_zero(stream(), memory_.data(), places().end);  // what an earlier window wrote
}

void RecordedPass::Scratch::close() {
  for (Stream* other : std::exchange(joined_, {})) other->synchronize();
}

std::string RecordedPass::Scratch::describe() const {
  return fmt::format("rank {}, recording program \"{}\", the {} window of unit {}", pass_.subject_.world.rank(),
                     pass_.subject_.program, to_string(kind()), unit().name());
}

bool RecordedPass::Scratch::trains(const Parameter& parameter) const {
  unit().index_of(parameter);
  if (parameter.options().frozen) return false;
  const auto& trained = pass_.subject_.trains;
  return !trained || std::find(trained->begin(), trained->end(), &unit()) != trained->end();
}

WindowView::View RecordedPass::Scratch::parameter(const Parameter& parameter, DType type) {
  const std::size_t index = unit().index_of(parameter);
  const DType actual = pass_.precision_of(unit()).parameter;
  if (type != actual) {
    throw UsageError(fmt::format("{}: parameter {} is {} here, not {}", describe(), parameter.name(), to_string(actual),
                                 to_string(type)));
  }
  return {at(places().parameters[index]), parameter.elements()};
}

WindowView::View RecordedPass::Scratch::gradient(const Parameter& parameter, DType type, GradientMode) {
  const std::size_t index = unit().index_of(parameter);
  if (kind() != WindowKind::backward || !trains(parameter)) {
    throw UsageError(fmt::format("{}: {} has no gradient here", describe(), parameter.name()));
  }
  const DType actual = pass_.precision_of(unit()).gradient;
  if (type != actual) {
    throw UsageError(fmt::format("{}: the gradient of {} is {} here, not {}", describe(), parameter.name(),
                                 to_string(actual), to_string(type)));
  }
  return {at(places().gradients[index]), parameter.elements()};
}

std::span<float> RecordedPass::Scratch::values(const Buffer& buffer) {
  const std::size_t index = unit().index_of(buffer);
  return {reinterpret_cast<float*>(at(places().buffers[index])), buffer.elements()};
}

std::span<double> RecordedPass::Scratch::contribution(const Exchange& exchange) {
  const std::size_t index = unit().index_of(exchange);
  return {reinterpret_cast<double*>(at(places().exchanges[index])), exchange.values()};
}

void RecordedPass::Scratch::join(Stream& other) {
  pass_.stream_.synchronize();
  joined_.push_back(&other);
}

}  // namespace tessera
