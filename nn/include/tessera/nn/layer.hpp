// All layers have one form, so that chains of them read alike:
//   Saved forward(Window&, ActivationStack&, x, y, …)                writes y, which the caller pushed, and pushes
//                                                                    what its backward needs
//   void backward(Window&, ActivationStack&, const Saved&, dy, dx)   writes dx, which the caller pushed; gives back
//                                                                    what it pushed. dx without columns: not wanted
// A pipeline may go back in two passes (plan::WindowKind::backward_input). Layers of a GPT have these, those that are
// cut into slices with Slices::in_two:
//   Between backward_input(Window&, ActivationStack&, const Saved&, dy, dx)   writes dx alone, and pushes what is left
//                                                                             to form the parameters' gradients from
//   void backward_parameters(Window&, ActivationStack&, const Saved&, const Between&)
// `Saved` is a handful of views. What they show must stay until backward() was called: x, and y where the layer says
// so. Several forwards may come before their backwards. When only y is wanted (evaluation, checkpointing), a
// ScratchScope around forward() gives the rest back.
//
// The window is one of a model that trains, or of a pass that only counts (counting_model.hpp), or of memory of the
// caller's (shard/watched_pass.hpp): the same code runs in all of them, and asks its window by these functions.
#pragma once

#include <type_traits>

#include "tessera/base/error.hpp"
#include "tessera/nn/activation_stack.hpp"
#include "tessera/nn/counted_work.hpp"
#include "tessera/shard/window.hpp"

#pragma GCC visibility push(default)

namespace tessera::nn {

// Returns Window::parameter(): null where the window only counts.
template <typename T>
const T* parameter_of(Window& window, const Parameter& parameter) {
  return window.parameter<T>(parameter).data();
}
// Returns Window::gradient(): null where the parameter is not trained, or the window only counts.
template <typename T>
T* gradient_of(Window& window, const Parameter& parameter) {
  return window.trains(parameter) ? window.gradient<T>(parameter).data() : nullptr;
}

// The kind of device that a layer takes scratch memory for: the stack's, which must be the stream's. Throws UsageError
// when it is not.
inline DeviceKind device_of(Window& window, const ActivationStack& stack) {
  if (!window.computes() || stack.device() == window.stream().device().kind()) return stack.device();
  throw UsageError(
      "activation stack: it counts and hands out memory of another kind of device than that of the stream, " +
      to_string(window.stream().device()) + "; make it with that device's kind");
}

// Calls function(stream, arguments…), unless the window only counts, which notes the arguments.
template <typename... Arguments>
void enqueue(Window& window, void (*function)(Stream&, Arguments...), std::type_identity_t<Arguments>... arguments) {
  if (window.computes()) return function(window.stream(), arguments...);
  if (auto* const work = dynamic_cast<CountedWork*>(window.notes())) work->note(arguments...);
}

}  // namespace tessera::nn

#pragma GCC visibility pop
