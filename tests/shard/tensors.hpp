// A model of tensors of given sizes whose gradients are small numbers that every rank has alike, so that their mean is
// exact for any number of ranks: what an update makes of them is then one of whole tensors in plain memory.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tessera/comm/run.hpp"
#include "tessera/shard/fully_shard.hpp"

namespace tensors {

using Bytes = std::vector<std::byte>;
using Values = std::map<std::string, Bytes>;

template <typename T>
Bytes bytes_of(const std::vector<T>& values) {
  const auto bytes = std::as_bytes(std::span(values));
  return {bytes.begin(), bytes.end()};
}

// Every tensor has its size for a name.
inline std::string name_of(std::size_t size) { return "t" + std::to_string(size); }

inline std::uint64_t mixed(std::uint64_t value) {
  value = (value ^ (value >> 31)) * 0x9e3779b97f4a7c15u;
  return value ^ (value >> 29);
}

// Eleven bits, of magnitudes that differ within a block; every 37th is zero.
inline float gradient_of(std::size_t size, int step, std::size_t element) {
  if (element % 37 == 3) return 0.0f;
  const std::uint64_t bits = mixed(mixed(element + 1) + mixed(size * 1000 + std::size_t(step)));
  const float number = float(std::int64_t(bits % 2047) - 1023) / 1024.0f;
  return number / float(1u << (2 * (bits >> 40) % 14));
}
inline float weight_of(std::size_t size, std::size_t element) {
  return float(mixed(element + mixed(size)) % 2001) / 1000.0f - 1.0f;
}

class Unit : public tessera::Module {
 public:
  explicit Unit(std::vector<std::size_t> sizes) : sizes_(std::move(sizes)) {
    for (const std::size_t size : sizes_) {
      parameters_.push_back(std::make_unique<tessera::Parameter>(tessera::Shape{size}, tessera::Initial::zeros()));
    }
  }
  void visit(tessera::ModuleVisitor& visitor) override {
    for (std::size_t i = 0; i < sizes_.size(); ++i) visitor(name_of(sizes_[i]), *parameters_[i]);
  }
  void forward(tessera::Window&) {}
  void backward(tessera::Window& window, int step) {
    for (std::size_t i = 0; i < sizes_.size(); ++i) {
      const std::span<float> gradient = window.gradient<float>(*parameters_[i]);
      window.stream().submit([gradient, step, size = sizes_[i]] {
        for (std::size_t e = 0; e < gradient.size(); ++e) gradient[e] = gradient_of(size, step, e);
      });
    }
  }

 private:
  std::vector<std::size_t> sizes_;
  std::vector<std::unique_ptr<tessera::Parameter>> parameters_;
};

// Units by the sizes of their tensors.
using Wrapping = std::vector<std::vector<std::size_t>>;

class Net {
 public:
  Net(tessera::World& world, const tessera::FullyShardOptions& options, const Wrapping& wrapping,
      std::unique_ptr<tessera::Optimizer> optimizer, tessera::MemorySpace states_in = tessera::MemorySpace::device,
      std::optional<std::string> prefix = std::nullopt)
      : model(world, options) {
    for (const std::vector<std::size_t>& sizes : wrapping) {
      units_.push_back(std::make_unique<Unit>(sizes));
      const bool elsewhere = units_.size() % 2 == 0;
      model.add(*units_.back(), {.name = "unit" + std::to_string(units_.size()),
                                 .states_in = elsewhere ? states_in : tessera::MemorySpace::device,
                                 .prefix = prefix});
    }
    model.finalize(std::move(optimizer));
    for (std::size_t u = 0; u < model.unit_count(); ++u) {
      for (const tessera::ParameterPiece& piece : model.pieces(model.unit(u))) {
        for (std::size_t i = 0; i < piece.values.size(); ++i) {
          piece.values[i] = weight_of(piece.parameter->elements(), piece.first + i);
        }
      }
      model.round_masters(model.unit(u));
    }
    model.shards_changed();
  }

  void step(int number) {
    for (auto& unit : units_) model.forward(*unit);
    for (std::size_t u = units_.size(); u-- > 0;) model.backward(*units_[u], number);
    model.update();
  }

  // Adds this rank's values of masters and states, under "m/t257".
  void collect(Values& whole, std::mutex& mutex) {
    const std::lock_guard lock(mutex);
    for (std::size_t u = 0; u < model.unit_count(); ++u) {
      std::vector<tessera::plan::StateSpec> states = model.plan().unit_states(u);
      states.emplace_back("master", model.plan().precision(u).masters);
      for (const tessera::plan::StateSpec& state : states) {
        for (const tessera::StatePiece& piece : model.state_pieces(model.unit(u), state.name)) {
          const std::size_t value = size_of(state.type).count();
          const std::size_t elements = piece.parameter->elements();
          Bytes& all = whole[state.name + "/" + name_of(elements)];
          all.resize(value * tessera::plan::values_of(elements, state.block));
          std::memcpy(all.data() + piece.first * value, piece.bytes.data(), piece.bytes.size());
        }
      }
    }
  }

 private:
  std::vector<std::unique_ptr<Unit>> units_;

 public:
  tessera::FullyShard model;
};

inline constexpr int steps = 5;

struct Training {
  int ranks = 1;
  tessera::FullyShardOptions options = {};
  Wrapping wrapping;
  tessera::MemorySpace states_in = tessera::MemorySpace::device;
  bool recompiles = false;  // before the third step
};

// Returns masters and states after `steps`.
template <typename Optimizer>
Values train(const Training& training, const Optimizer& optimizer, std::optional<std::string> prefix = std::nullopt) {
  Values values;
  std::mutex mutex;
  tessera::launch({.ranks = training.ranks, .timeout = std::chrono::seconds(20)}, [&](tessera::World& world) {
    Net net(world, training.options, training.wrapping, optimizer, training.states_in, prefix);
    for (int step = 0; step < steps; ++step) {
      if (training.recompiles && step == 2) net.model.recompile();
      net.step(step);
    }
    net.collect(values, mutex);
  });
  return values;
}

}  // namespace tensors
