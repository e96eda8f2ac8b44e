// A module's parameter and a module's buffer, with the runtime's memory behind them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>
#include <string>

#include "src/autograd_node.hpp"
#include "src/hidden_tensor.hpp"
#include "tessera/shard/fully_shard.hpp"

namespace tessera::torch {

Shape shape_of(const at::Tensor& tensor);

// A view of memory that the runtime owns.
at::Tensor view_of(void* data, at::IntArrayRef sizes, DType type, at::Device device);

// Which face the tensor has: the memory that its module came with, none, or the window's.
class ParameterTensor {
 public:
  // Windows show it on the device. `parameter` has its shape.
  ParameterTensor(at::Tensor tensor, Parameter parameter, std::shared_ptr<HiddenMark> mark, at::Device device);
  ParameterTensor(const ParameterTensor&) = delete;
  ParameterTensor& operator=(const ParameterTensor&) = delete;

  const std::string& name() const { return mark_->parameter; }
  Parameter& parameter() { return parameter_; }
  const at::Tensor& tensor() const { return tensor_; }

  void show_own() { show_as(tensor_, own_); }
  void hide() { show_as(tensor_, hidden_); }
  void show(Window& window);

  // Returns the tensor as it came: with its own values in fp32, or deferred.
  const at::Tensor& own() const { return own_; }
  // Its own memory goes, and it is hidden, with the type that windows will show it in.
  void hand_over(const Precision& precision);
  // Nobody's: with its own values where they were not handed over, else empty.
  void let_go();

  // Takes a gradient to its place in the open backward window: the first one of the window is written, later ones are
  // added.
  void take_gradient(Window& window, std::size_t window_serial, const at::Tensor& gradient);

 private:
  void watch_gradient();

  at::Tensor tensor_;
  Parameter parameter_;
  std::shared_ptr<HiddenMark> mark_;
  Precision precision_ = fp32_precision;
  at::Device device_;
  at::Tensor own_;
  at::Tensor hidden_;
  at::Tensor shown_;            // the window's memory, which keeps its address
  NodePointer accumulator_;     // kept, because autograd would make another one
  std::size_t written_in_ = 0;  // the serial number of a window
};

// Whole on every rank and always there, so it needs one face: the arena's memory.
class BufferTensor {
 public:
  BufferTensor(at::Tensor tensor, at::Device device);

  Buffer& buffer() { return buffer_; }
  const at::Tensor& own() const { return tensor_; }  // until it is shown
  void show(std::span<float> values);
  void let_go();  // has memory of its own again

 private:
  at::Tensor tensor_;
  Buffer buffer_;
  at::Device device_;
};

}  // namespace tessera::torch
