// Layers without the runtime: parameters and gradients of a module in vectors, in any element type.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "memory_windows.hpp"
#include "reference.hpp"
#include "tessera/device/arena.hpp"
#include "tessera/nn/activation_stack.hpp"
#include "tessera/nn/layer.hpp"
#include "tessera/shard/module.hpp"

template <typename T>
class Standalone final : public MemoryWindows, private tessera::ModuleVisitor {
 public:
  explicit Standalone(tessera::Module& module) { module.visit(*this); }

  struct Entry {
    std::string name;
    const tessera::Parameter* parameter;
    std::vector<T> values;
    std::vector<T> gradient;
  };
  std::vector<Entry>& entries() { return entries_; }
  Entry& entry(const std::string& name) {
    for (Entry& each : entries_) {
      if (each.name == name) return each;
    }
    FAIL("no parameter is called ", name);
    return entries_.front();
  }
  std::vector<std::string> names() const {
    std::vector<std::string> result;
    for (const Entry& each : entries_) result.push_back(each.name);
    return result;
  }

  tessera::Stream& stream() override { return stream_; }
  const void* parameter(const tessera::Parameter& parameter) override { return find(parameter).values.data(); }
  void* gradient(const tessera::Parameter& parameter) override { return find(parameter).gradient.data(); }
  const float* loss_scale() override { return &loss_scale_; }
  float* buffer(const tessera::Buffer& buffer) override {
    for (BufferEntry& each : buffers_) {
      if (each.buffer == &buffer) return each.values.data();
    }
    throw tessera::UsageError("not a buffer of this module");
  }
  // One rank among none.
  double* contribution(const tessera::Collective& collective) override {
    exchanged_.resize(std::max(exchanged_.size(), collective.elements()));
    return exchanged_.data();
  }

  struct BufferEntry {
    std::string name;
    const tessera::Buffer* buffer;
    std::vector<float> values;  // start as the buffer's own
  };
  std::vector<BufferEntry>& buffers() { return buffers_; }
  // Sets what forward passes are for from now on.
  void is_for(tessera::plan::WindowKind kind) { kind_ = kind; }

  template <typename M, typename... Args>
  decltype(auto) forward(M& module, Args&&... args) {
    return pass(kind_, module, std::forward<Args>(args)...);
  }

 private:
  void operator()(std::string_view name, tessera::Parameter& parameter) override {
    // Not far from the initial values, but none of them 0.
    std::vector<float> values(parameter.elements());
    parameter.initial().fill(values, 1, name, 0);
    const std::vector<float> change = random_floats(values.size(), 100 + static_cast<unsigned>(entries_.size()));
    for (std::size_t i = 0; i < values.size(); ++i) values[i] += 0.3f * change[i];
    entries_.push_back({.name = prefix_ + std::string(name),
                        .parameter = &parameter,
                        .values = stored<T>(widened(values)),
                        .gradient = stored<T>(std::vector<double>(parameter.elements(), 1e4))});
  }
  void operator()(std::string_view name, tessera::Buffer& buffer) override {
    std::vector<float> values(buffer.elements());
    buffer.initial().fill(values, 1, name, 0);
    buffers_.push_back({.name = prefix_ + std::string(name), .buffer = &buffer, .values = std::move(values)});
  }
  void operator()(std::string_view, tessera::Collective&) override {}
  void operator()(std::string_view name, tessera::Module& part) override {
    const std::string before = prefix_;
    prefix_ += std::string(name) + ".";
    part.visit(*this);
    prefix_ = before;
  }
  Entry& find(const tessera::Parameter& parameter) {
    for (Entry& each : entries_) {
      if (each.parameter == &parameter) return each;
    }
    throw tessera::UsageError("not a parameter of this module");
  }

  std::vector<Entry> entries_;
  std::vector<BufferEntry> buffers_;
  std::vector<double> exchanged_;
  tessera::plan::WindowKind kind_ = tessera::plan::WindowKind::forward;
  std::string prefix_;
  tessera::Stream stream_ = immediate_stream();
  float loss_scale_ = 1.0f;
};

// A stack on memory of its own, which is full of NaN at first.
class OwnStack {
 public:
  explicit OwnStack(tessera::Bytes bytes)
      : arena_(tessera::Device::cpu(), bytes), stack_({arena_.data(), bytes.count()}) {
    poison();
  }
  void poison() { std::fill_n(arena_.data(), arena_.size().count(), std::byte{0xff}); }
  tessera::nn::ActivationStack& operator*() { return stack_; }

 private:
  tessera::Arena arena_;
  tessera::nn::ActivationStack stack_;
};
