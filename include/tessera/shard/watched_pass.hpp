// A pass that no plan runs: the windows that it opens are written down in their order. What they show is for the one
// who watches to say: nothing, to count activations or to learn the order of units; scratch memory, for the passes that
// finalize() records; memory of the caller's own, for layers without the runtime.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/plan/program.hpp"
#include "tessera/shard/module.hpp"
#include "tessera/shard/unit.hpp"
#include "tessera/shard/window.hpp"
#include "tessera/shard/window_host.hpp"

#pragma GCC visibility push(default)

namespace tessera {

class WatchedPass;

// Shows nothing, and has no stream: parameters are null, and nothing may be enqueued (Window::computes).
class WatchedWindow : public WindowView {
 public:
  explicit WatchedWindow(WatchedPass& pass) : pass_(pass) {}
  virtual void open(const plan::WindowUse& use, std::size_t serial) { use_ = use, serial_ = serial; }
  virtual void close() {}
  const plan::WindowUse& use() const { return use_; }
  bool is(std::size_t serial) const { return serial_ == serial; }
  std::string describe() const;

  const Unit& unit() const override;
  plan::WindowKind kind() const override { return use_.kind; }
  bool computes() const override { return false; }
  WindowNotes* notes() override;
  bool trains(const Parameter& parameter) const override { return !parameter.options().frozen; }
  View parameter(const Parameter&, std::optional<DType>) override { return {nullptr, 0}; }
  View gradient(const Parameter&, std::optional<DType>, GradientMode) override { return {nullptr, 0}; }
  std::span<float> values(const Buffer&) override { return {}; }
  std::span<std::byte> saved() override { return {}; }
  View contribution(const Collective&, std::optional<DType>) override { return {nullptr, 0}; }
  const float* loss_scale() override { return nullptr; }
  Stream& stream() override;  // throws UsageError
  void join(Stream&) override {}
  void keep(std::shared_ptr<void> object) override;

 private:
  WatchedPass& pass_;
  plan::WindowUse use_{};
  std::size_t serial_ = 0;
};

class WatchedPass : public WindowHost {
 public:
  WatchedPass(const WatchedPass&) = delete;
  WatchedPass& operator=(const WatchedPass&) = delete;
  ~WatchedPass() override;

  // Those since the last call; the pass has ended. Throws UsageError where one is still open.
  std::vector<plan::WindowUse> take_windows();

  // ---- WindowHost ----
  Window open(const plan::WindowUse& use) override;
  WindowView* open_window(std::size_t serial) override;
  void close(std::size_t serial) override;
  void begin(std::size_t, const Collective&) override {}
  Collected<std::byte> collect(std::size_t serial, const Collective& collective) override;
  void abandon(std::string_view) noexcept override {}

 protected:
  explicit WatchedPass(std::string description);  // for errors
  void link(WindowLink link) { *link_ = std::move(link); }
  WindowLink& link() { return *link_; }
  const WatchedWindow* innermost() const { return depth_ == 0 ? nullptr : windows_[depth_ - 1].get(); }

 private:
  friend class WatchedWindow;
  virtual std::unique_ptr<WatchedWindow> make_window() { return std::make_unique<WatchedWindow>(*this); }
  virtual void begin(const plan::WindowUse&) {}  // also of a window that goes on
  virtual WindowNotes* notes() { return nullptr; }
  virtual std::size_t ranks() const { return 1; }
  void write_down(const plan::WindowUse& use);

  std::string description_;
  std::shared_ptr<WindowLink> link_;
  std::vector<plan::WindowUse> uses_;
  std::vector<std::shared_ptr<void>> kept_;              // until the pass has ended
  std::vector<std::unique_ptr<WatchedWindow>> windows_;  // by depth; the first `depth_` are open
  std::size_t depth_ = 0;
  std::size_t serial_ = 0;
};

// Stands in for a FullyShard in such a pass: the same calls, without World and plan.
class StandInModel : public WatchedPass {
 public:
  StandInModel() : WatchedPass("a pass without a model") {}

  // Does what FullyShard::add() does; a module that was not added is, where its first window opens. Returns the unit's
  // index.
  std::size_t add(UnitOptions options);
  std::size_t add(const Module& module, UnitOptions options);
  std::size_t add(const Module& module, std::string_view name = {}) {
    return add(module, UnitOptions{.name = std::string(name)});
  }

  template <typename M, typename... Args>
  decltype(auto) pass(plan::WindowKind kind, M& module, Args&&... args) {
    return open(module, kind).run_forward(module, std::forward<Args>(args)...);
  }
  template <typename M, typename... Args>
  decltype(auto) forward(M& module, Args&&... args) {
    return pass(plan::WindowKind::forward, module, std::forward<Args>(args)...);
  }
  template <typename M, typename... Args>
  decltype(auto) recompute(M& module, Args&&... args) {
    return pass(plan::WindowKind::recompute, module, std::forward<Args>(args)...);
  }
  template <typename M, typename... Args>
  decltype(auto) evaluate(M& module, Args&&... args) {
    return pass(plan::WindowKind::evaluate, module, std::forward<Args>(args)...);
  }
  template <typename M, typename... Args>
  decltype(auto) backward(M& module, Args&&... args) {
    compute_again(unit(unit_of(module)));
    return open(module, plan::WindowKind::backward).run([&](Window& window) -> decltype(auto) {
      return module.backward(window, std::forward<Args>(args)...);
    });
  }

  template <typename M, typename... Args>
  decltype(auto) backward_input(M& module, Args&&... args) {
    return open(module, plan::WindowKind::backward_input).run([&](Window& window) -> decltype(auto) {
      return module.backward_input(window, std::forward<Args>(args)...);
    });
  }

  using WatchedPass::open;
  Window open(const Module& module, plan::WindowKind kind) { return open({unit_of(module), kind}); }
  const Unit& unit(std::size_t index) const override { return *units_[index]; }

 private:
  std::size_t unit_of(const Module& module);

  std::vector<std::unique_ptr<Unit>> units_;  // without tensors, which stay free for a model
};

}  // namespace tessera

#pragma GCC visibility pop
