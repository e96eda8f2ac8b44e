// Stands in for a FullyShard in a pass that only counts its activations: the same calls, without windows.
//   template <typename Model> void pass(Model& model, ActivationStack& stack);   // the pass, for both
//   CountingModel counting; ActivationStack stack; pass(counting, stack);        // stack.peak() is what it needs
#pragma once

#include <utility>

#include "tessera/nn/layer_window.hpp"

namespace tessera::nn {

class CountingModel {
 public:
  template <typename M, typename... Args>
  decltype(auto) forward(M& module, Args&&... args) {
    return module.forward(LayerWindow::counting(), std::forward<Args>(args)...);
  }
  template <typename M, typename... Args>
  decltype(auto) recompute(M& module, Args&&... args) {
    return module.forward(LayerWindow::counting(), std::forward<Args>(args)...);
  }
  template <typename M, typename... Args>
  decltype(auto) evaluate(M& module, Args&&... args) {
    return module.forward(LayerWindow::counting(), std::forward<Args>(args)...);
  }
  template <typename M, typename... Args>
  decltype(auto) backward(M& module, Args&&... args) {
    return module.backward(LayerWindow::counting(), std::forward<Args>(args)...);
  }
};

}  // namespace tessera::nn
