// Windows are handles: what they do is done by who opened them.
#include "tessera/shard/window.hpp"

#include <fmt/format.h>

#include <exception>

#include "tessera/base/error.hpp"
#include "tessera/shard/window_host.hpp"

namespace tessera {

WindowLink link_to(WindowHost& host, int rank, std::span<const std::unique_ptr<Unit>> units,
                   const std::map<const Module*, Unit*>& modules) {
  WindowLink link{.host = &host, .rank = rank};
  for (const auto& unit : units) link.units.push_back(unit->name());
  for (const auto& [module, unit] : modules) link.modules[module] = unit->index();
  return link;
}

void WindowHost::compute_again(const Unit& unit) {
  if (!unit.options().recompute) return;
  kept_calls().require(unit.index(), unit.name());
  Window again = open({unit.index(), plan::WindowKind::recompute});  // refused, the call stays
  KeptCalls::Taken call = kept_calls().take(unit.index(), unit.name());
  again.run([&](Window& window) { call.make(window); });
}

UsageError wrong_type(const std::string& window, const AskedType& asked) {
  return UsageError(fmt::format("{}: {} {} is {} here, not {}", window, asked.what, asked.parameter.name(),
                                to_string(asked.actual), asked.asked ? to_string(*asked.asked) : "fp64"));
}

void require_type(const std::string& window, const Collective& collective, std::optional<DType> asked) {
  const auto name = [](std::optional<DType> type) { return type ? to_string(*type) : "fp64"; };
  if (asked == collective.options().type) return;
  throw UsageError(
      fmt::format("{}: {} is of {}, not {}", window, collective.name(), name(collective.options().type), name(asked)));
}

void require_no_setting(const Unit& unit) {
  if (!unit.options().recompute) return;
  throw UsageError(fmt::format(
      "unit {} computes its forward pass again by itself (UnitOptions::recompute), right before its backward "
      "window: a pass that does so, too, leaves that setting out",
      unit.name()));
}

Window::Window(std::shared_ptr<const WindowLink> link, plan::WindowUse use, std::size_t serial)
    : link_(std::move(link)), use_(use), serial_(serial), exceptions_at_opening_(std::uncaught_exceptions()) {}

Window::Window(Window&& other) noexcept = default;

// Aborting tells the other ranks; it does not communicate. A window that was merely forgotten is found by the next
// open().
Window::~Window() {
  if (!is_open() || std::uncaught_exceptions() <= exceptions_at_opening_) return;
  link_->host->abandon("the window was left by an exception");
}

bool Window::is_open() const {
  return link_ != nullptr && link_->host != nullptr && link_->host->open_window(serial_) != nullptr;
}

WindowView& Window::opened() const {
  if (is_open()) return *link_->host->open_window(serial_);
  if (link_ == nullptr) throw UsageError("a window was used after it had been moved to another handle");
  throw UsageError(
      fmt::format("rank {}: the {} window of unit {} was used after {}; parameters are whole only inside "
                  "their window",
                  link_->rank, to_string(use_.kind), link_->units[use_.unit],
                  link_->host != nullptr ? "it had closed" : "its model was gone, or had another plan by recompile()"));
}

const std::string& Window::unit() const { return opened().unit().name(); }
bool Window::computes() const { return opened().computes(); }
WindowNotes* Window::notes() { return opened().notes(); }
plan::WindowKind Window::kind() const { return opened().kind(); }
bool Window::trains(const Parameter& parameter) const { return opened().trains(parameter); }
std::span<float> Window::buffer(const Buffer& buffer) { return opened().values(buffer); }
std::span<std::byte> Window::saved() {
  WindowView& here = opened();
  if (here.kind() != plan::WindowKind::evaluate) return here.saved();
  throw UsageError(
      fmt::format("the evaluation window of unit {} saves nothing: no backward window follows it", unit()));
}
TensorMemory Window::raw_contribution(const Collective& collective, std::optional<DType> type) {
  const TensorMemory memory = opened().contribution(collective, type);
  if (collective.options().kind != CollectiveKind::receive) return memory;
  throw UsageError(fmt::format("the {} window of unit {}: {} is received, and nothing is written for it: collect() it",
                               to_string(use_.kind), unit(), collective.name()));
}
void Window::raw_begin(const Collective& collective, std::optional<DType> type) {
  raw_contribution(collective, type);
  if (collective.options().overlaps) return link_->host->begin(serial_, collective);
  throw UsageError(fmt::format("the {} window of unit {}: {} does not overlap (CollectiveOptions): collect() it",
                               to_string(use_.kind), unit(), collective.name()));
}
Collected<std::byte> Window::raw_collect(const Collective& collective, std::optional<DType> type) {
  opened().check_collect(collective, type);
  return link_->host->collect(serial_, collective);
}
Stream& Window::stream() { return opened().stream(); }
void Window::join(Stream& other) { opened().join(other); }
const float* Window::loss_scale() const { return opened().loss_scale(); }

void Window::keep_object(std::shared_ptr<void> object) { opened().keep(std::move(object)); }

TensorMemory Window::raw_parameter(const Parameter& parameter, std::optional<DType> type) {
  return opened().parameter(parameter, type);
}

TensorMemory Window::raw_gradient(const Parameter& parameter, std::optional<DType> type, GradientMode mode) {
  return opened().gradient(parameter, type, mode);
}

bool Window::is_unit(const Module& part) const {
  opened();
  return link_->modules.contains(&part);
}

Window Window::open_inside(const Module& part, plan::WindowKind kind) {
  opened();
  const auto unit = link_->modules.find(&part);
  if (unit != link_->modules.end()) {
    if (kind == plan::WindowKind::recompute && use_.kind == plan::WindowKind::backward) {
      require_no_setting(link_->host->unit(unit->second));
    }
    return link_->host->open({unit->second, kind});
  }
  throw UsageError(fmt::format(
      "rank {}, {} window of unit {}: a {} window was asked for of a module that is no unit of this model (or has "
      "moved since): call its functions with this window, or add it to the model",
      link_->rank, to_string(use_.kind), link_->units[use_.unit], to_string(kind)));
}

void Window::compute_again(const Module& part) {
  opened();
  const auto unit = link_->modules.find(&part);
  if (unit != link_->modules.end()) link_->host->compute_again(link_->host->unit(unit->second));
}

bool Window::recomputes() const {
  const WindowView& window = opened();
  return window.kind() == plan::WindowKind::forward && window.unit().options().recompute;
}

std::size_t Window::granules() const { return opened().granules(); }

// Inside a recompute window a unit's parts are called as they were in the forward pass.
KeptCalls* Window::kept_calls() const {
  const WindowView& window = opened();
  const bool goes_forward = window.kind() == plan::WindowKind::forward || window.kind() == plan::WindowKind::recompute;
  return goes_forward && window.unit().options().recompute ? &link_->host->kept_calls() : nullptr;
}

void Window::refuse_to_keep() const {
  throw UsageError(fmt::format(
      "unit {} computes its forward pass again before backward, and an argument of its forward() is a temporary that "
      "cannot be copied: pass something that has a name and stays until then",
      unit()));
}

void Window::close() {
  opened();
  link_->host->close(serial_);
}

void Window::abandon() noexcept {
  if (link_ == nullptr || link_->host == nullptr) return;
  try {
    throw;
  } catch (const AbortedError&) {
    // Another rank's failure, and known.
  } catch (const std::exception& error) {
    link_->host->abandon(error.what());
  } catch (...) {
    link_->host->abandon("something that is no std::exception was thrown");
  }
}

}  // namespace tessera
