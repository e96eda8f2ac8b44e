// Initial values of parameters: a function of (seed, parameter name, element index) and of nothing else, so that the
// same seed gives the same model for any number of ranks, and each rank fills only its shard. The generator is
// Philox4x32-10 (Salmon et al., SC'11), keyed by the seed and a hash of the name, counted by the index.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#pragma GCC visibility push(default)

namespace tessera {

class Initial {
 public:
  static Initial zeros() { return constant(0.0f); }
  static Initial ones() { return constant(1.0f); }
  static Initial constant(float value) { return Initial(Kind::constant, value, 0.0f); }
  static Initial uniform(float low, float high) { return Initial(Kind::uniform, low, high); }  // [low, high)
  static Initial normal(float mean, float deviation) { return Initial(Kind::normal, mean, deviation); }
  // Uniform in ±sqrt(1 / fan_in): what PyTorch gives a linear layer's weight and bias.
  static Initial fan_in(std::size_t fan_in);

  // values[i] becomes the value of element first + i of the parameter `name`. Host memory; runs on the calling thread.
  void fill(std::span<float> values, std::uint64_t seed, std::string_view name, std::uint64_t first) const;

  std::string describe() const;  // "normal, 0 and 0.02"; no two others say the same

 private:
  enum class Kind { constant, uniform, normal };
  Initial(Kind kind, float a, float b) : kind_(kind), a_(a), b_(b) {}
  Kind kind_;
  float a_;
  float b_;
};

}  // namespace tessera

#pragma GCC visibility pop
