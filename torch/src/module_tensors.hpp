// A module's parameter and a module's buffer, with the runtime's memory behind them.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>

#include <cstddef>
#include <memory>
#include <string>

#include "src/hidden_tensor.hpp"
#include "tessera/shard/fully_shard.hpp"

namespace tessera::torch {

// Which face the tensor has: the memory that its module came with, none, or the window's.
class ParameterTensor {
 public:
  ParameterTensor(at::Tensor tensor, ParameterOptions options, std::shared_ptr<HiddenMark> mark);
  ParameterTensor(const ParameterTensor&) = delete;
  ParameterTensor& operator=(const ParameterTensor&) = delete;

  const std::string& name() const { return mark_->parameter; }
  Parameter& parameter() { return parameter_; }
  const at::Tensor& tensor() const { return tensor_; }

  void show_own() { show_as(tensor_, own_); }
  void hide() { show_as(tensor_, hidden_); }
  void show(Window& window);

  // Its own values, in fp32 and contiguous.
  at::Tensor own_values() const;
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
  at::Tensor own_;
  at::Tensor hidden_;
  at::Tensor shown_;                                      // the window's memory, which keeps its address
  std::shared_ptr<::torch::autograd::Node> accumulator_;  // kept, because autograd would make another one
  std::size_t written_in_ = 0;                            // the serial number of a window
};

// Whole on every rank and always there, so it needs one face: the arena's memory.
class BufferTensor {
 public:
  explicit BufferTensor(at::Tensor tensor);

  Buffer& buffer() { return buffer_; }
  at::Tensor own_values() const { return tensor_.contiguous(); }
  void show(std::span<float> values);
  void let_go();  // has memory of its own again

 private:
  at::Tensor tensor_;
  Buffer buffer_;
};

}  // namespace tessera::torch
