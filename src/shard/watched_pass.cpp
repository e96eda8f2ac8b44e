// Windows open as they come; one that closes inside another lets that go on.
#include "tessera/shard/watched_pass.hpp"

#include <fmt/format.h>

#include "tessera/base/error.hpp"

namespace tessera {

const Unit& WatchedWindow::unit() const { return pass_.unit(use_.unit); }
WindowNotes* WatchedWindow::notes() { return pass_.notes(); }
void WatchedWindow::keep(std::shared_ptr<void> object) { pass_.kept_.push_back(std::move(object)); }

Stream& WatchedWindow::stream() {
  throw UsageError(fmt::format("{} computes nothing, and has no stream: ask Window::computes() first", describe()));
}

std::string WatchedWindow::describe() const {
  return fmt::format("{}, the {} window of unit {}", pass_.description_, to_string(kind()), unit().name());
}

WatchedPass::WatchedPass(std::string description)
    : description_(std::move(description)), link_(std::make_shared<WindowLink>(WindowLink{.host = this})) {}

WatchedPass::~WatchedPass() { link_->host = nullptr; }

std::vector<plan::WindowUse> WatchedPass::take_windows() {
  kept_.clear();
  clear_kept_calls();
  if (depth_ > 0) throw UsageError(fmt::format("{} is still open where its pass ends", innermost()->describe()));
  return std::exchange(uses_, {});
}

void WatchedPass::write_down(const plan::WindowUse& use) {
  uses_.push_back(use);
  begin(use);
}

Window WatchedPass::open(const plan::WindowUse& use) {
  for (std::size_t depth = 0; depth < depth_; ++depth) {
    if (windows_[depth]->use().unit != use.unit) continue;
    throw UsageError(fmt::format("the {} window of unit {} cannot open: {} is still open, close it first",
                                 to_string(use.kind), link_->units[use.unit], windows_[depth]->describe()));
  }
  if (depth_ == windows_.size()) windows_.push_back(make_window());
  write_down(use);
  windows_[depth_++]->open(use, ++serial_);
  return Window(link_, use, serial_);
}

WindowView* WatchedPass::open_window(std::size_t serial) {
  for (std::size_t depth = 0; depth < depth_; ++depth) {
    if (windows_[depth]->is(serial)) return windows_[depth].get();
  }
  return nullptr;
}

// The others bring zeros: a pass that is watched meets nobody.
Collected<std::byte> WatchedPass::collect(std::size_t serial, const Collective& collective) {
  const CollectiveOptions& options = collective.options();
  return {.first = static_cast<const std::byte*>(open_window(serial)->contribution(collective, options.type).data),
          .values = collective.elements(),
          .stride = collective.elements(),
          .replicas = 1,
          .ranks_of_replica =
              static_cast<std::uint32_t>(plan::sums(options.kind) || plan::is_message(options.kind) ? 1 : ranks())};
}

void WatchedPass::close(std::size_t serial) {
  WatchedWindow& closing = *windows_[depth_ - 1];
  if (!closing.is(serial)) {
    throw UsageError(
        fmt::format("a window around it cannot close: {} is still open, close it first", closing.describe()));
  }
  closing.close();
  if (--depth_ == 0) return;
  const plan::WindowUse& around = innermost()->use();
  write_down({around.unit, around.kind, true});
}

// ---- one that stands in for a model ----

std::size_t StandInModel::add(UnitOptions options) {
  if (options.name.empty()) options.name = fmt::format("units.{}", units_.size());
  link().units.push_back(options.name);
  units_.push_back(std::make_unique<Unit>(std::move(options), units_.size(), std::span<const NamedParameter>{}));
  return units_.size() - 1;
}

std::size_t StandInModel::add(const Module& module, UnitOptions options) {
  return link().modules[&module] = add(std::move(options));
}

std::size_t StandInModel::unit_of(const Module& module) {
  const auto added = link().modules.find(&module);
  return added == link().modules.end() ? add(module) : added->second;
}

}  // namespace tessera
