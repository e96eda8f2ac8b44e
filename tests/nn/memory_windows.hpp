// Layers without the runtime: windows that show memory of the test's.
#pragma once

#include <memory>
#include <optional>
#include <span>

#include "tessera/base/error.hpp"
#include "tessera/shard/watched_pass.hpp"

class MemoryWindows : public tessera::StandInModel {
 public:
  virtual tessera::Stream& stream() = 0;
  virtual const void* parameter(const tessera::Parameter&) { return nullptr; }
  virtual void* gradient(const tessera::Parameter&) { return nullptr; }  // null: not wanted
  virtual const float* loss_scale() { return nullptr; }
  virtual float* buffer(const tessera::Buffer&) { throw tessera::UsageError("this memory has no buffers"); }
  virtual double* contribution(const tessera::Collective&) { throw tessera::UsageError("this memory is of one rank"); }

 private:
  class Shown final : public tessera::WatchedWindow {
   public:
    explicit Shown(MemoryWindows& memory) : WatchedWindow(memory), memory_(memory) {}
    bool computes() const override { return true; }
    bool trains(const tessera::Parameter& parameter) const override { return memory_.gradient(parameter) != nullptr; }
    View parameter(const tessera::Parameter& parameter, std::optional<tessera::DType>) override {
      return {const_cast<void*>(memory_.parameter(parameter)), parameter.elements()};
    }
    View gradient(const tessera::Parameter& parameter, std::optional<tessera::DType>, tessera::GradientMode) override {
      return {memory_.gradient(parameter), parameter.elements()};
    }
    std::span<float> values(const tessera::Buffer& buffer) override {
      return {memory_.buffer(buffer), buffer.elements()};
    }
    View contribution(const tessera::Collective& collective, std::optional<tessera::DType>) override {
      return {memory_.contribution(collective), collective.elements()};
    }
    const float* loss_scale() override { return memory_.loss_scale(); }
    tessera::Stream& stream() override { return memory_.stream(); }

   private:
    MemoryWindows& memory_;
  };

  std::unique_ptr<tessera::WatchedWindow> make_window() override { return std::make_unique<Shown>(*this); }
};
