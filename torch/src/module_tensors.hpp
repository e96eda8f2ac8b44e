// A module's parameter and a module's buffer, with the runtime's memory behind them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "src/autograd_node.hpp"
#include "src/hidden_tensor.hpp"
#include "tessera/shard/fully_shard.hpp"

namespace tessera::torch {

Shape shape_of(const at::Tensor& tensor);

// Throws UsageError where tensors beside the module's and `own`, which shares with it, have the same memory.
void require_alone(const at::Tensor& own, const std::string& name);

// Throws UsageError for a buffer whose values would be others after a stay in fp32.
void require_exact(const at::Tensor& buffer, const std::string& name);

// A view of memory that the runtime owns.
at::Tensor view_of(void* data, at::IntArrayRef sizes, DType type, at::Device device);

// Which face the tensor has: the memory that its module came with, none, or the window's.
class ParameterTensor {
 public:
  // Windows show it on the device. `parameter` has its shape.
  ParameterTensor(at::Tensor tensor, Parameter parameter, std::shared_ptr<ParameterMark> mark, at::Device device);
  ParameterTensor(const ParameterTensor&) = delete;
  ParameterTensor& operator=(const ParameterTensor&) = delete;

  const std::string& name() const { return mark_->parameter; }
  Parameter& parameter() { return parameter_; }
  const at::Tensor& tensor() const { return tensor_; }

  void show_own() { show_as(tensor_, own_); }
  void hide();
  void show(Window& window);

  // Returns the tensor as it came, or was given since: with its own values in fp32, or deferred.
  const at::Tensor& own() const { return own_; }
  // The tensor's values of now are its own. Throws UsageError where it is no longer what was sharded, or shares memory.
  void take_own();
  // Throws UsageError where the tensor has a gradient other than zero, which no window would take over.
  void require_no_gradient() const;
  // Its own memory goes, and it is hidden, with the type that windows will show it in.
  void hand_over(const Precision& precision);
  // The tensor is nobody's: it has its own values where they were not handed over, else none. Views of it are errors
  // from then on.
  void let_go();

  // Takes a gradient to its place in the open backward window: the first one of the window is written, later ones are
  // added.
  void take_gradient(Window& window, std::size_t window_serial, const at::Tensor& gradient);
  // Keeps one that came where no backward window is open, but the one of this serial number was the last: adds it.
  void keep_gradient(const at::Tensor& gradient, std::size_t window_serial);
  void drop_kept_gradient() { kept_gradient_ = at::Tensor(); }
  // Into the open backward window: what was kept, or zero.
  void give_gradient(Window& window, std::size_t window_serial);
  // Whether a place for the gradient was asked for since this was called last, and whether one stands there.
  bool take_gradient_asked() { return std::exchange(mark_->gradient_asked, false); }
  bool has_given_gradient() const;
  // From the next plan on it trains, or no more, as its tensor says.
  void follow_requires_grad();
  [[noreturn]] void refuse_change_inside_step() const;
  std::size_t written_in() const { return written_in_; }  // the serial number of the last window that has a gradient

  const Node* accumulator() const { return accumulator_.get(); }  // null: it was not used yet, or is frozen
  bool is_in_graph() const { return accumulator_ != nullptr && accumulator_.use_count() > 1; }

 private:
  void watch_gradient();
  at::Tensor gradient_in(Window& window) const;

  at::Tensor tensor_;
  Parameter parameter_;
  std::shared_ptr<ParameterMark> mark_;
  Precision precision_ = fp32_precision;
  at::Device device_;
  at::Tensor own_;
  at::Tensor hidden_;
  at::Tensor shown_;         // the window's memory, which keeps its address; null while it is hidden
  NodePointer accumulator_;  // kept, because autograd would make another one
  at::Tensor kept_gradient_;
  std::size_t written_in_ = 0;  // the serial number of a window
};

// Whole on every rank and always there. One of fp32 needs one face: the arena's memory. Another type keeps its own, and
// the arena has its values in fp32, which hold them exactly: who has changed is copied to the other side.
class BufferTensor {
 public:
  BufferTensor(at::Tensor tensor, std::string name, at::Device device);

  Buffer& buffer() { return buffer_; }
  const std::string& name() const { return name_; }
  const at::Tensor& own() const { return tensor_; }  // until it is shown
  // Throws UsageError where the tensor has another shape than it came with, or shares its memory.
  void require_usable() const;
  void show(std::span<float> values);
  void move(std::span<float> values);  // the same values stand there now
  void to_runtime();    // what the module has written, or was given; UsageError where fp32 does not hold it
  void from_runtime();  // what was loaded, or came from rank 0
  void let_go();        // its storage has memory of its own again, also for views

 private:
  bool is_copied() const { return common_.defined(); }
  void require_same_shape() const;
  void take(const at::Tensor& values);

  at::Tensor tensor_;
  std::string name_;
  Buffer buffer_;
  at::Device device_;
  at::Tensor place_;   // the arena's memory, from show() on
  at::Tensor common_;  // what both sides had last, of one that is copied
};

}  // namespace tessera::torch
