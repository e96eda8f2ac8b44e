// A layer runs in a LayerWindow: usually a window of the runtime; or nothing at all, when a pass only counts its
// activations: then parameters have no memory and nothing is enqueued, so the same code counts that computes; or memory
// of the caller's, for layers without the runtime.
// All layers have one form, so that chains of them read alike:
//   Saved forward(LayerWindow, ActivationStack&, x, y, …)            writes y, which the caller pushed, and pushes
//                                                                    what its backward needs
//   void backward(LayerWindow, ActivationStack&, const Saved&, dy, dx)   writes dx, which the caller pushed; gives back
//                                                                    what it pushed. dx without columns: not wanted
// `Saved` is a handful of views. What they show must stay until backward() was called: x, and y where the layer says
// so. Several forwards may come before their backwards. When only y is wanted (evaluation, checkpointing), a
// ScratchScope around forward() gives the rest back.
#pragma once

#include <type_traits>

#include "tessera/base/error.hpp"
#include "tessera/nn/activation_stack.hpp"
#include "tessera/nn/counted_work.hpp"
#include "tessera/shard/window.hpp"

#pragma GCC visibility push(default)

namespace tessera::nn {

// Whole parameters and gradients in memory that somebody else owns, of the element type that the layers have.
class ParameterMemory {
 public:
  virtual ~ParameterMemory() = default;
  virtual Stream& stream() = 0;
  virtual const void* parameter(const Parameter& parameter) = 0;
  virtual void* gradient(const Parameter& parameter) = 0;  // null: not wanted
  virtual const float* loss_scale() = 0;
  // Layers that have buffers ask for them here. Throws UsageError unless it is overridden.
  virtual float* buffer(const Buffer& buffer);
  // Layers that exchange something among ranks use these: what this one brings, and what all do. Both throw UsageError
  // unless they are overridden.
  virtual double* contribution(const Exchange& exchange);
  virtual Contributions exchange(const Exchange& exchange);
  virtual plan::WindowKind kind() { return plan::WindowKind::forward; }  // forward, or what a forward pass is else
};

inline float* ParameterMemory::buffer(const Buffer&) {
  throw UsageError("this memory has parameters only, and a layer asks for a buffer");
}

inline double* ParameterMemory::contribution(const Exchange&) {
  throw UsageError("this memory is of one rank, and a layer asks for what several bring");
}
inline Contributions ParameterMemory::exchange(const Exchange& exchange) {
  return {.first = contribution(exchange), .values = exchange.values()};
}

class LayerWindow {
 public:
  LayerWindow(Window& window) : window_(&window) {}  // NOLINT(google-explicit-constructor): FullyShard passes windows
  explicit LayerWindow(ParameterMemory& memory) : memory_(&memory) {}
  // `recomputes`: the unit has that setting. `work`, where there is one, notes what would be enqueued.
  static LayerWindow counting(plan::WindowKind kind = plan::WindowKind::forward, bool recomputes = false,
                              CountedWork* work = nullptr) {
    return LayerWindow(kind, recomputes, work);
  }

  bool counts_only() const { return window_ == nullptr && memory_ == nullptr; }

  // The kind is what a forward pass is for: training, the same again (recompute), or evaluation.
  plan::WindowKind kind() const {
    if (memory_ != nullptr) return memory_->kind();
    return window_ == nullptr ? counted_ : window_->kind();
  }

  // True in a window that computes a part again, as Window::recomputes().
  bool recomputes() const { return window_ == nullptr ? counted_again_ : window_->recomputes(); }

  // The kind of device that a layer takes scratch memory for: the stack's, which must be the stream's. Throws
  // UsageError when it is not.
  DeviceKind device(const ActivationStack& stack) const {
    if (counts_only() || stack.device() == stream().device().kind()) return stack.device();
    throw UsageError(
        "activation stack: it counts and hands out memory of another kind of device than that of the stream, " +
        to_string(stream().device()) + "; make it with that device's kind");
  }

  // This is Window's; null when counting, and the gradient of a frozen parameter is null.
  template <typename T>
  const T* parameter(const Parameter& parameter) const {
    if (memory_ != nullptr) return static_cast<const T*>(memory_->parameter(parameter));
    if constexpr (std::is_same_v<T, double>)
      return without_window<T>();
    else
      return window_ == nullptr ? nullptr : window_->parameter<T>(parameter).data();
  }
  template <typename T>
  T* gradient(const Parameter& parameter) const {
    if (memory_ != nullptr) return static_cast<T*>(memory_->gradient(parameter));
    if constexpr (std::is_same_v<T, double>)
      return without_window<T>();
    else
      return window_ == nullptr || !window_->trains(parameter) ? nullptr : window_->gradient<T>(parameter).data();
  }
  // This is Window's; null when counting.
  float* buffer(const Buffer& buffer) const {
    if (memory_ != nullptr) return memory_->buffer(buffer);
    return window_ == nullptr ? nullptr : window_->buffer(buffer).data();
  }
  // These are Window's; nothing when counting.
  double* contribution(const Exchange& exchange) const {
    if (memory_ != nullptr) return memory_->contribution(exchange);
    return window_ == nullptr ? nullptr : window_->contribution(exchange).data();
  }
  Contributions exchange(const Exchange& exchange) const {
    if (memory_ != nullptr) return memory_->exchange(exchange);
    return window_ == nullptr ? Contributions{} : window_->exchange(exchange);
  }
  const float* loss_scale() const {
    if (memory_ != nullptr) return memory_->loss_scale();
    return window_ == nullptr ? nullptr : window_->loss_scale();
  }

  // function(stream, arguments…), unless counting, which notes the arguments.
  template <typename... Arguments>
  void enqueue(void (*function)(Stream&, Arguments...), std::type_identity_t<Arguments>... arguments) const {
    if (!counts_only()) return function(stream(), arguments...);
    if (work_ != nullptr) work_->note(arguments...);
  }

 private:
  LayerWindow(plan::WindowKind counted, bool again, CountedWork* work)
      : counted_(counted), counted_again_(again), work_(work) {}

  Stream& stream() const { return memory_ != nullptr ? memory_->stream() : window_->stream(); }
  template <typename T>
  T* without_window() const {
    if (window_ != nullptr)
      throw UsageError("layers of double run without the runtime only: it has no such parameters");
    return nullptr;
  }

  Window* window_ = nullptr;
  ParameterMemory* memory_ = nullptr;
  plan::WindowKind counted_ = plan::WindowKind::forward;
  bool counted_again_ = false;
  CountedWork* work_ = nullptr;
};

}  // namespace tessera::nn

#pragma GCC visibility pop
