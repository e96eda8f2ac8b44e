// Views of a window's parameters and gradients as DLPack has them (DLManagedTensor, without a copy), for whoever takes
// such: torch's at::fromDLPack, CuPy, JAX, numpy, or code that makes an Eigen map or an xtensor view of it. The header
// needs no dlpack.h.
//
// Lifetime: what the view shows is the window's memory, and right as long as the window is open. Outside, it may belong
// to another unit; in the unit's next window it is right again, at the same address, until recompile() or the model's
// end. The consumer calls the tensor's deleter, whenever it likes: that frees the description alone.
// Stream: the consumer works in the order of window.stream(), or on a stream that was joined; on the CPU, whose stream
// runs what it is given at once, simply on this thread.
#pragma once

#include "tessera/base/dtype.hpp"
#include "tessera/base/shape.hpp"
#include "tessera/device/device.hpp"
#include "tessera/shard/window.hpp"

struct DLManagedTensor;  // dlpack.h's

#pragma GCC visibility push(default)

namespace tessera {

// Memory of the device, row-major in this shape. Does not look at it. The caller's, to hand on or to delete.
DLManagedTensor* dlpack_view(void* data, DType type, const Shape& shape, Device device);

// This is Window::parameter(), to be read only: DLPack has no way to say so.
template <typename T = float>
DLManagedTensor* dlpack_parameter(Window& window, const Parameter& parameter) {
  return dlpack_view(const_cast<T*>(window.parameter<T>(parameter).data()), dtype_of<T>, parameter.shape(),
                     window.stream().device());
}

// This is Window::gradient(): a window that hands it out counts it as asked for.
template <typename T = float>
DLManagedTensor* dlpack_gradient(Window& window, const Parameter& parameter,
                                 GradientMode mode = GradientMode::overwrite) {
  return dlpack_view(window.gradient<T>(parameter, mode).data(), dtype_of<T>, parameter.shape(),
                     window.stream().device());
}

}  // namespace tessera

#pragma GCC visibility pop
