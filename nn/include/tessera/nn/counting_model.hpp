// Stands in for a FullyShard in a pass that only counts its activations and writes down its windows: the same calls,
// without memory.
//   template <typename Model> void pass(Model& model, ActivationStack& stack);   // the pass, for both
//   CountingModel counting; ActivationStack stack; pass(counting, stack);        // stack.peak() is what it needs
#pragma once

#include <cstddef>
#include <map>
#include <utility>
#include <vector>

#include "tessera/nn/layer_window.hpp"
#include "tessera/plan/program.hpp"
#include "tessera/shard/module.hpp"
#include "tessera/shard/unit.hpp"

namespace tessera::nn {

class CountingModel {
 public:
  // As FullyShard::add, for those whose windows are to be written down.
  void add(const Module& module, const UnitOptions& = {}) { units_.emplace(&module, units_.size()); }

  template <typename M, typename... Args>
  decltype(auto) forward(M& module, Args&&... args) {
    note(module, plan::WindowKind::forward);
    return module.forward(LayerWindow::counting(plan::WindowKind::forward), std::forward<Args>(args)...);
  }
  template <typename M, typename... Args>
  decltype(auto) recompute(M& module, Args&&... args) {
    note(module, plan::WindowKind::recompute);
    return module.forward(LayerWindow::counting(plan::WindowKind::recompute), std::forward<Args>(args)...);
  }
  template <typename M, typename... Args>
  decltype(auto) evaluate(M& module, Args&&... args) {
    note(module, plan::WindowKind::evaluate);
    return module.forward(LayerWindow::counting(plan::WindowKind::evaluate), std::forward<Args>(args)...);
  }
  template <typename M, typename... Args>
  decltype(auto) backward(M& module, Args&&... args) {
    note(module, plan::WindowKind::backward);
    return module.backward(LayerWindow::counting(plan::WindowKind::backward), std::forward<Args>(args)...);
  }

  // Of modules that were added, since the last call: what plan::Program has of a micro-batch or an evaluation.
  std::vector<plan::WindowUse> take_windows() { return std::exchange(windows_, {}); }

 private:
  template <typename M>
  void note(const M& module, plan::WindowKind kind) {
    if (units_.empty()) return;
    const auto unit = units_.find(&module);
    if (unit != units_.end()) windows_.push_back({unit->second, kind});
  }

  std::map<const Module*, std::size_t> units_;
  std::vector<plan::WindowUse> windows_;
};

}  // namespace tessera::nn
