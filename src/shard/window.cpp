// Windows are handles: what they do is done by the executor that opened them.
#include "tessera/shard/window.hpp"

#include <exception>
#include <utility>

#include "shard/executor.hpp"

namespace tessera {

Window::Window(Executor& executor, std::size_t serial)
    : executor_(&executor), serial_(serial), exceptions_at_opening_(std::uncaught_exceptions()) {}

Window::Window(Window&& other) noexcept
    : executor_(std::exchange(other.executor_, nullptr)),
      serial_(other.serial_),
      exceptions_at_opening_(other.exceptions_at_opening_) {}

// Aborting tells the other ranks; it does not communicate. A window that was merely forgotten is found by the next
// open().
Window::~Window() {
  if (executor_ == nullptr || !executor_->is_open(serial_)) return;
  if (std::uncaught_exceptions() > exceptions_at_opening_) executor_->abandon("the window was left by an exception");
}

bool Window::is_open() const { return executor_ != nullptr && executor_->is_open(serial_); }

const std::string& Window::unit() const {
  executor_->require_open(serial_);
  return executor_->open_unit().name();
}

plan::WindowKind Window::kind() const {
  executor_->require_open(serial_);
  return executor_->open_kind();
}

bool Window::trains(const Parameter& parameter) const {
  executor_->require_open(serial_);
  return executor_->trains(parameter);
}

std::span<float> Window::buffer(const Buffer& buffer) {
  executor_->require_open(serial_);
  return executor_->buffer(executor_->open_unit(), buffer);
}

Stream& Window::stream() {
  executor_->require_open(serial_);
  return executor_->compute();
}

void Window::join(Stream& other) {
  executor_->require_open(serial_);
  executor_->join(other);
}

const float* Window::loss_scale() const {
  executor_->require_open(serial_);
  return executor_->loss_scale();
}

Window::Raw Window::raw_parameter(const Parameter& parameter, DType type) {
  executor_->require_open(serial_);
  const Executor::View view = executor_->parameter(parameter, type);
  return {view.data, view.elements};
}

Window::Raw Window::raw_gradient(const Parameter& parameter, DType type, GradientMode mode) {
  executor_->require_open(serial_);
  const Executor::View view = executor_->gradient(parameter, type, mode);
  return {view.data, view.elements};
}

void Window::close() {
  executor_->require_open(serial_);
  executor_->close();
}

}  // namespace tessera
