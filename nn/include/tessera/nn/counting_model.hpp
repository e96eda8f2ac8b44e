// Stands in for a FullyShard in a pass that only counts its activations and writes down its windows: the same calls,
// without memory.
//   template <typename Model> void pass(Model& model, ActivationStack& stack);   // the pass, for both
//   CountingModel counting; ActivationStack stack; pass(counting, stack);        // stack.peak() is what it needs
#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <list>
#include <map>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/nn/layer_window.hpp"
#include "tessera/plan/program.hpp"
#include "tessera/shard/kept_calls.hpp"
#include "tessera/shard/module.hpp"
#include "tessera/shard/unit.hpp"

#pragma GCC visibility push(default)

namespace tessera::nn {

class CountingModel {
 public:
  // Does what FullyShard::add does, for modules whose windows are to be written down.
  void add(const Module& module, const UnitOptions& options = {}) {
    units_.emplace(&module, units_.size());
    if (options.recompute) recomputing_.insert(&module);
  }
  void add(const Module& module, std::string_view) { add(module); }

  template <typename M, typename... Args>
  decltype(auto) forward(M& module, Args&&... args) {
    CountedWork* const work = note(module, plan::WindowKind::forward);
    const bool again = recomputing_.contains(&module);
    if (again) {
      kept_.push_back({&module, [call = ForwardCall<LayerWindow, M, Args...>(module, args...)](
                                    LayerWindow window) mutable { call.make(window); }});
    }
    return module.forward(LayerWindow::counting(plan::WindowKind::forward, again, work), std::forward<Args>(args)...);
  }
  template <typename M, typename... Args>
  decltype(auto) recompute(M& module, Args&&... args) {
    CountedWork* const work = note(module, plan::WindowKind::recompute);
    return module.forward(LayerWindow::counting(plan::WindowKind::recompute, false, work), std::forward<Args>(args)...);
  }
  template <typename M, typename... Args>
  decltype(auto) evaluate(M& module, Args&&... args) {
    CountedWork* const work = note(module, plan::WindowKind::evaluate);
    return module.forward(LayerWindow::counting(plan::WindowKind::evaluate, false, work), std::forward<Args>(args)...);
  }
  template <typename M, typename... Args>
  decltype(auto) backward(M& module, Args&&... args) {
    compute_again(module);
    CountedWork* const work = note(module, plan::WindowKind::backward);
    return module.backward(LayerWindow::counting(plan::WindowKind::backward, false, work), std::forward<Args>(args)...);
  }

  // Returns the windows of modules that were added, since the last call: what plan::Program has of a micro-batch or an
  // evaluation.
  std::vector<plan::WindowUse> take_windows() {
    kept_.clear();
    works_.clear();
    return std::exchange(windows_, {});
  }
  // Returns what each of these windows computes, in their order, since the last call of take_windows().
  const std::list<CountedWork>& works() const { return works_; }

 private:
  // Where the window's work is noted; null for modules that were not added.
  template <typename M>
  CountedWork* note(const M& module, plan::WindowKind kind) {
    if (units_.empty()) return nullptr;
    const auto unit = units_.find(&module);
    if (unit == units_.end()) return nullptr;
    windows_.push_back({unit->second, kind});
    return &works_.emplace_back();
  }

  // The latest call that was not gone back through.
  template <typename M>
  void compute_again(const M& module) {
    const auto latest =
        std::find_if(kept_.rbegin(), kept_.rend(), [&](const Kept& kept) { return kept.module == &module; });
    if (latest == kept_.rend()) return;
    const auto call = std::move(latest->call);
    kept_.erase(latest.base() - 1);
    CountedWork* const work = note(module, plan::WindowKind::recompute);
    call(LayerWindow::counting(plan::WindowKind::recompute, false, work));
  }

  // A call of a unit that recomputes (UnitOptions::recompute).
  struct Kept {
    const Module* module;
    std::function<void(LayerWindow)> call;
  };

  std::map<const Module*, std::size_t> units_;
  std::set<const Module*> recomputing_;
  std::vector<Kept> kept_;
  std::vector<plan::WindowUse> windows_;
  std::list<CountedWork> works_;  // of each of these; an empty one allocates nothing, and entries stay where they are
};

}  // namespace tessera::nn

#pragma GCC visibility pop
