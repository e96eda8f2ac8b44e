// Views of the open unit, and what is asked of them.
#include "shard/open_window.hpp"

#include <fmt/format.h>

#include <cstdint>

#include "device/device_backend.hpp"
#include "plan/ranges.hpp"
#include "tessera/base/error.hpp"
#include "tessera/kernels/elementwise.hpp"

namespace tessera {

using plan::WindowKind;

namespace {

// The parts of ranks come in an order that Collected::of() undoes along two axes.
void require_order(const plan::Plan& plan, const plan::CollectiveSpec& collective) {
  std::size_t axes = 0;
  plan.mesh.inwards_out([&](Axis axis) { axes += plan.group_of(collective).contains(axis) ? 1 : 0; });
  const std::size_t most = collective.kind == CollectiveKind::all_gather ? 2 : 1;
  if (axes <= most || collective.kind == CollectiveKind::all_reduce) return;
  throw UsageError(fmt::format("{} is {} over {}: name at most {} of these axes (CollectiveOptions::axes)",
                               collective.name, plan::to_string(collective.kind), to_string(plan.group_of(collective)),
                               most));
}

}  // namespace

OpenWindow::OpenWindow(const Model& model)
    : plan_(model.plan),
      units_(model.units),
      memory_(model.memory),
      ledgers_(model.ledgers),
      compute_(model.compute),
      rank_(model.rank) {
  for (const plan::UnitSpec& unit : plan_.units) {
    auto& of_unit = collectives_.emplace_back();
    for (std::size_t kind = 0; kind < of_unit.size(); ++kind) {
      of_unit[kind] = plan::collectives_in(unit, static_cast<WindowKind>(kind));
    }
    for (const plan::CollectiveSpec& each : unit.collectives) require_order(plan_, each);
  }
}

// ---- opening and closing ----

void OpenWindow::open(const plan::Operation& window, std::size_t program, std::size_t serial) {
  const plan::WindowUse use{window.unit, window.window, window.resumes};
  const bool trains = use.kind == WindowKind::backward && plan_.trains(use.unit, program);
  const bool last_backward = trains && ledgers_[use.unit].begin_window() == plan_.backward_windows[use.unit];
  current_ = Current{&window, use, program, serial, last_backward};
}

void OpenWindow::settle_gradients() {
  const std::size_t unit = current_->use.unit;
  if (kind() != WindowKind::backward || !trains_unit()) return;
  GradientLedger& ledger = ledgers_[unit];
  if (!current_->skipped) ledger.end_computed_window();
  for (std::size_t p = 0; p < units_[unit]->parameters().size(); ++p) {
    if (plan_.units[unit].parameters[p].frozen) continue;
    if (ledger.asked_in_window(p)) continue;
    const Parameter& parameter = *units_[unit]->parameters()[p];
    const bool missing = current_->last_backward && ledger.computed_in_micro_batch() && !ledger.asked_in_micro_batch(p);
    if (missing && parameter.elements() > 0 && !parameter.options().optional) {
      throw UsageError(
          fmt::format("{}: the gradient of {} was never asked for; write it, or declare the parameter optional",
                      describe(), parameter.name()));
    }
    fill_gradient_zero(unit, p);
  }
}

void OpenWindow::fill_gradient_zero(std::size_t unit, std::size_t parameter) {
  const DType type = plan_.precision(unit).gradient;
  const View gradient = view(plan_.unit_buffers[unit][plan::Role::gradient_slot].buffer, parameter, type);
  if (plan_.has_granules() && current_->skipped) {
    kernels::fill_negative_zero(compute_, {gradient.data, type}, gradient.elements);
  } else {
    kernels::fill_zero(compute_, static_cast<std::byte*>(gradient.data), size_of(type) * gradient.elements);
  }
}

// Refused before anything is kept of it: the window must still close.
void OpenWindow::join(Stream& other) {
  if (other.device() != compute_.device()) {
    throw UsageError(fmt::format(
        "{}: stream {} is on {}, and a window on {} joins streams of its own device: let the host wait for the other "
        "one's work (Stream::synchronize)",
        describe(), other.name(), to_string(other.device()), to_string(compute_.device())));
  }
  std::erase_if(joined_, [](const Joined& joined) { return !joined.active && joined.life.expired(); });
  auto known = std::find_if(joined_.begin(), joined_.end(), [&](const Joined& joined) {
    return joined.stream == &other.implementation() && !joined.life.expired();
  });
  if (known == joined_.end()) {
    joined_.push_back({&other.implementation(), other.life(), other.name(),
                       Event(other.device(), other.name() + " after the window opened"),
                       Event(other.device(), other.name() + " before the window closes"), false});
    known = joined_.end() - 1;
  }
  known->active = true;
  fork(*known);
}

void OpenWindow::fork(Joined& joined) {
  compute_.record(joined.fork);
  joined.stream->wait(joined.fork.implementation());
}

void OpenWindow::fork_joined_streams() {
  for (Joined& joined : joined_) {
    if (!joined.active) continue;
    require_alive(joined);
    fork(joined);
  }
}

void OpenWindow::await_joined_streams() {
  for (Joined& joined : joined_) {
    if (!joined.active) continue;
    require_alive(joined);
    joined.stream->record(joined.join.implementation());
    compute_.wait(joined.join);
  }
}

void OpenWindow::leave_joined_streams() {
  await_joined_streams();
  for (Joined& joined : joined_) joined.active = false;
}

void OpenWindow::require_alive(const Joined& joined) const {
  if (!joined.life.expired()) return;
  throw UsageError(
      fmt::format("{}: stream {}, which joined this window, has ended before the window closes: keep it until then",
                  describe(), joined.name));
}

// ---- what it shows ----

bool OpenWindow::trains(const Parameter& parameter) const {
  return !plan_.units[current_->use.unit].parameters[unit().index_of(parameter)].frozen && trains_unit();
}

OpenWindow::View OpenWindow::parameter(const Parameter& parameter, std::optional<DType> type) {
  const std::size_t index = unit().index_of(parameter);
  const DType actual = plan_.precision(current_->use.unit).parameter;
  if (type != actual) throw wrong_type(describe(), {"parameter", parameter, actual, type});
  return view(plan_.unit_buffers[current_->use.unit][plan::Role::parameters].buffer, index, actual);
}

std::span<std::byte> OpenWindow::saved() {
  const std::size_t unit = current_->use.unit;
  const plan::Content& saved = plan_.unit_buffers[unit][plan::Role::saved];
  if (!saved.exists()) return {};
  return {memory_.base(saved.buffer), plan_.units[unit].saved.count()};
}

OpenWindow::View OpenWindow::gradient(const Parameter& parameter, std::optional<DType> type, GradientMode mode) {
  const std::size_t unit = current_->use.unit;
  const std::size_t index = this->unit().index_of(parameter);
  if (kind() != WindowKind::backward) {
    throw UsageError(
        fmt::format("{}: gradient of {} asked for outside a backward window", describe(), parameter.name()));
  }
  if (plan_.units[unit].parameters[index].frozen) {
    throw UsageError(
        fmt::format("{}: {} is frozen and has no gradient; ask Window::trains() first", describe(), parameter.name()));
  }
  if (!trains_unit()) {
    throw UsageError(
        fmt::format("{}: {} has no gradient, because program \"{}\" does not train its unit; ask "
                    "Window::trains() first",
                    describe(), parameter.name(), plan_.programs[current_->program].name));
  }
  const DType actual = plan_.precision(unit).gradient;
  if (type != actual) throw wrong_type(describe(), {"the gradient of", parameter, actual, type});
  if (ledgers_[unit].ask(index) && mode == GradientMode::accumulate) {
    fill_gradient_zero(unit, index);
    fork_joined_streams();  // they add to what is zero by then
  }
  return view(plan_.unit_buffers[unit][plan::Role::gradient_slot].buffer, index, actual);
}

// ---- collectives ----

const Collective* OpenWindow::next_collective() const {
  const std::vector<std::size_t>& all = collectives();
  return current_->collectives_done == all.size() ? nullptr : unit().collectives()[all[current_->collectives_done]];
}

void OpenWindow::require_next(const Collective& collective) const {
  const std::size_t index = unit().index_of(collective);
  const Collective* const next = next_collective();
  if (next == &collective) return;
  const std::vector<std::size_t>& all = collectives();
  if (std::find(all.begin(), all.end(), index) == all.end()) {
    throw UsageError(fmt::format("{}: {} is not declared for {} windows (CollectiveOptions)", describe(),
                                 collective.name(), to_string(kind())));
  }
  if (next == nullptr) {
    throw UsageError(
        fmt::format("{}: {} came again; a window does each of its collectives once", describe(), collective.name()));
  }
  throw UsageError(
      fmt::format("{}: {} came, and {} was expected: they come in the order in which the module names them, in "
                  "backward windows in reverse",
                  describe(), collective.name(), next->name()));
}

OpenWindow::View OpenWindow::contribution(const Collective& collective, std::optional<DType> type) {
  require_next(collective);
  if (type != collective.options().type) require_type(describe(), collective, type);
  const std::size_t index = unit().index_of(collective);
  const plan::CollectiveSpec& spec = spec_of(collective);
  if (is_message(spec.kind)) return {message(index), spec.elements};
  const Collective* const other = current_->on_its_way;
  if (other != nullptr && !(spec.overlaps && plan::buffer_of(plan_, spec_of(*other)) != plan::buffer_of(plan_, spec)))
    require_none_on_its_way(collective.name(), " is written");
  return {memory_.address(plan::brought(plan_, spec)),
          spec.elements * spec.parts(plan_.mesh.size(plan_.group_of(spec)))};
}

void OpenWindow::check_collect(const Collective& collective, std::optional<DType> type) {
  if (!has_begun(collective)) return void(contribution(collective, type));
  if (type != collective.options().type) require_type(describe(), collective, type);
}

const plan::CollectiveSpec& OpenWindow::spec_of(const Collective& collective) const {
  return plan_.units[current_->use.unit].collectives[unit().index_of(collective)];
}

void OpenWindow::require_none_on_its_way(std::string_view name, std::string_view happens) const {
  if (current_->on_its_way == nullptr) return;
  throw UsageError(fmt::format("{}: its collective {} has begun, and was not collected before {}{}", describe(),
                               current_->on_its_way->name(), name, happens));
}

void OpenWindow::begin_collective(const Collective& collective) {
  require_next(collective);
  require_none_on_its_way(collective.name(), " begins");
  ++current_->collectives_done;
  current_->on_its_way = &collective;
}

bool OpenWindow::meets_others() const {
  const plan::CollectiveSpec& spec = spec_of(*current_->on_its_way);
  return !is_message(spec.kind) && !plan_.group_of(spec).empty();
}

Collected<std::byte> OpenWindow::take_collective() {
  const Collective& collective = *std::exchange(current_->on_its_way, nullptr);
  const std::size_t index = unit().index_of(collective);
  const plan::CollectiveSpec& spec = spec_of(collective);
  if (is_message(spec.kind)) return {.first = message(index), .values = spec.elements, .stride = spec.elements};
  const AxisSet group = plan_.group_of(spec);
  Collected<std::byte> came{
      .first = memory_.address(plan::received(plan_, spec)), .values = spec.elements, .stride = spec.elements};
  if (plan::sums(spec.kind)) return came;
  plan_.mesh.inwards_out([&](Axis axis) {
    if (!group.contains(axis)) return;
    (came.ranks_of_replica == 1 ? came.ranks_of_replica : came.replicas) =
        static_cast<std::uint32_t>(plan_.mesh.size(axis));
  });
  return came;
}

std::byte* OpenWindow::message(std::size_t collective) {
  const std::size_t buffer = plan_.messages[current_->use.unit][collective];
  for (const plan::Access& access : current_->operation->accesses) {
    if (access.range.buffer == buffer) return memory_.address(access.range);
  }
  throw InternalError("a window without its message");
}

void OpenWindow::require_collectives_done() const {
  require_none_on_its_way("it", " closes");
  const Collective* const next = next_collective();
  if (next == nullptr) return;
  throw UsageError(
      fmt::format("{} closes, and its collective {} was not done: every rank does every one of a window's, also one "
                  "without samples",
                  describe(), next->name()));
}

OpenWindow::View OpenWindow::view(std::size_t buffer, std::size_t parameter, DType type) {
  const plan::UnitLayout& layout = plan_.layouts[current_->use.unit];
  return {memory_.base(buffer) + (size_of(type) * layout.offset(parameter)).count(), layout.elements(parameter)};
}

std::string OpenWindow::describe() const {
  return fmt::format("rank {}, {} window of unit {}", rank_, to_string(kind()), unit().name());
}

}  // namespace tessera
