// Scratch memory: the loss scale and the user's activations, and for each open window the tensors of its unit.
#include "shard/recorded_pass.hpp"

#include <fmt/format.h>

#include <algorithm>
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
    : WatchedPass(fmt::format("rank {}, recording program \"{}\"", subject.world.rank(), subject.program)),
      subject_(subject),
      memory_(subject.world.device(), alignment + subject.activations),
      stream_(subject.world.device(), StreamOptions{.name = fmt::format("r{}.recording", subject.world.rank()),
                                                    .mode = StreamMode::immediate,
                                                    .wait_timeout = 4 * subject.world.timeout()}) {
  for (const auto& unit : subject_.units) {
    offsets_.push_back(offsets_of(*unit));
    largest_ = std::max(largest_, offsets_.back().end);
  }
  loss_scale_ = reinterpret_cast<const float*>(memory_.data());
  kernels::copy(stream_, memory_.data(), &no_scaling, Bytes(sizeof no_scaling));
  link(link_to(*this, subject_.world.rank(), subject_.units, subject_.modules));
}

const Precision& RecordedPass::precision_of(const Unit& unit) const {
  return unit.options().precision ? *unit.options().precision : subject_.precision;
}

RecordedPass::UnitOffsets RecordedPass::offsets_of(const Unit& unit) const {
  UnitOffsets offsets{.parameters = {}, .gradients = {}, .buffers = {}, .collectives = {}, .saved = {}, .end = {}};
  const auto place = [&](std::vector<Bytes>& list, Bytes size) {
    list.push_back(offsets.end);
    offsets.end = round_up(offsets.end + size, alignment);
  };
  const Precision& types = precision_of(unit);
  for (const Parameter* each : unit.parameters()) {
    place(offsets.parameters, size_of(types.parameter) * each->elements());
    place(offsets.gradients, size_of(types.gradient) * each->elements());
  }
  for (const Buffer* each : unit.buffers()) place(offsets.buffers, size_of(DType::fp32) * each->elements());
  const auto ranks = static_cast<std::size_t>(subject_.world.size());
  for (const Collective* each : unit.collectives()) {
    place(offsets.collectives, each->spec().bytes() * ranks);
  }
  offsets.saved = std::exchange(offsets.end, round_up(offsets.end + unit.options().saved, alignment));
  return offsets;
}

std::span<std::byte> RecordedPass::activation_memory() {
  if (subject_.activations == Bytes(0)) return {};
  return memory_.range(alignment, subject_.activations);
}

// ---- the pass ----

std::vector<plan::WindowUse> RecordedPass::run(const std::function<void()>& pass) {
  pass();
  stream_.synchronize();
  std::vector<plan::WindowUse> windows = take_windows();
  if (!windows.empty()) return windows;
  throw UsageError(fmt::format("the pass of program \"{}\" opened no window: it calls forward and backward of modules",
                               subject_.program));
}

void RecordedPass::abandon(std::string_view what) noexcept {
  try {
    subject_.world.abort(innermost() != nullptr ? fmt::format("{}: {}", innermost()->describe(), what)
                                                : std::string(what));
  } catch (...) {
    subject_.world.abort(what);
  }
}

// ---- its windows ----

RecordedPass::Scratch::Scratch(RecordedPass& pass)
    : WatchedWindow(pass), pass_(pass), memory_(pass.subject_.world.device(), pass.largest_) {}

void RecordedPass::Scratch::open(const plan::WindowUse& use, std::size_t serial) {
  WatchedWindow::open(use, serial);
  kernels::fill_zero(stream(), memory_.data(), offsets().end);  // what an earlier window wrote
}

void RecordedPass::Scratch::close() {
  for (Stream* other : std::exchange(joined_, {})) other->synchronize();
}

bool RecordedPass::Scratch::trains(const Parameter& parameter) const {
  unit().index_of(parameter);
  if (parameter.options().frozen) return false;
  const auto& trained = pass_.subject_.trains;
  return !trained || std::find(trained->begin(), trained->end(), &unit()) != trained->end();
}

WindowView::View RecordedPass::Scratch::parameter(const Parameter& parameter, std::optional<DType> type) {
  const std::size_t index = unit().index_of(parameter);
  const DType actual = pass_.precision_of(unit()).parameter;
  if (type != actual) throw wrong_type(describe(), {"parameter", parameter, actual, type});
  return {at(offsets().parameters[index]), parameter.elements()};
}

WindowView::View RecordedPass::Scratch::gradient(const Parameter& parameter, std::optional<DType> type, GradientMode) {
  const std::size_t index = unit().index_of(parameter);
  if (kind() != WindowKind::backward || !trains(parameter)) {
    throw UsageError(fmt::format("{}: {} has no gradient here", describe(), parameter.name()));
  }
  const DType actual = pass_.precision_of(unit()).gradient;
  if (type != actual) throw wrong_type(describe(), {"the gradient of", parameter, actual, type});
  return {at(offsets().gradients[index]), parameter.elements()};
}

std::span<float> RecordedPass::Scratch::values(const Buffer& buffer) {
  const std::size_t index = unit().index_of(buffer);
  return {reinterpret_cast<float*>(at(offsets().buffers[index])), buffer.elements()};
}

WindowView::View RecordedPass::Scratch::contribution(const Collective& collective, std::optional<DType> type) {
  const std::size_t index = unit().index_of(collective);
  require_type(describe(), collective, type);
  return {at(offsets().collectives[index]), collective.elements() * collective.spec().parts(pass_.ranks())};
}

void RecordedPass::Scratch::join(Stream& other) {
  pass_.stream_.synchronize();
  joined_.push_back(&other);
}

}  // namespace tessera
