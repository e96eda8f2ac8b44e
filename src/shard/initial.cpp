// Element i of a parameter comes from block i / 2 of its own random sequence.
#include "tessera/shard/initial.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

#include "base/hash.hpp"
#include "tessera/base/error.hpp"
#include "tessera/base/philox.hpp"

namespace tessera {

namespace {

// Two words of 64 bits for the elements 2 * block and 2 * block + 1.
std::array<std::uint64_t, 2> words(std::uint64_t block, PhiloxKey key) {
  const PhiloxCounter random =
      philox({static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32), 0, 0}, key);
  return {std::uint64_t{random[1]} << 32 | random[0], std::uint64_t{random[3]} << 32 | random[2]};
}

// In [0, 1), with 53 random bits.
double unit_interval(std::uint64_t word) { return static_cast<double>(word >> 11) * 0x1.0p-53; }

std::array<double, 2> uniform_pair(std::uint64_t block, PhiloxKey key) {
  const auto pair = words(block, key);
  return {unit_interval(pair[0]), unit_interval(pair[1])};
}

// Box and Muller's transform.
std::array<double, 2> normal_pair(std::uint64_t block, PhiloxKey key) {
  const auto uniform = uniform_pair(block, key);
  const double radius = std::sqrt(-2.0 * std::log1p(-uniform[0]));
  const double angle = 2.0 * std::numbers::pi * uniform[1];
  return {radius * std::cos(angle), radius * std::sin(angle)};
}

template <typename Pair, typename Transform>
void fill_pairs(std::span<float> values, std::uint64_t first, PhiloxKey key, Pair pair, Transform transform) {
  for (std::size_t i = 0; i < values.size();) {
    const std::uint64_t index = first + i;
    const std::array<double, 2> drawn = pair(index / 2, key);
    for (std::uint64_t lane = index % 2; lane < 2 && i < values.size(); ++lane, ++i) values[i] = transform(drawn[lane]);
  }
}

}  // namespace

std::string Initial::describe() const {
  constexpr const char* names[] = {"constant", "uniform", "normal"};
  return fmt::format("{}, {} and {}", names[static_cast<std::size_t>(kind_)], a_, b_);
}

Initial Initial::fan_in(std::size_t fan_in) {
  if (fan_in == 0) return zeros();
  const float bound = std::sqrt(1.0f / static_cast<float>(fan_in));
  return uniform(-bound, bound);
}

void Initial::fill(std::span<float> values, std::uint64_t seed, std::string_view name, std::uint64_t first) const {
  const double a = a_;
  const double b = b_;
  const PhiloxKey key = key_of(seed, name);
  switch (kind_) {
    case Kind::constant: std::fill(values.begin(), values.end(), a_); return;
    case Kind::uniform:
      fill_pairs(values, first, key, uniform_pair, [=](double drawn) {
        return std::min(static_cast<float>(a + (b - a) * drawn),
                        std::nextafter(static_cast<float>(b), static_cast<float>(a)));
      });
      return;
    case Kind::normal:
      fill_pairs(values, first, key, normal_pair, [=](double drawn) { return static_cast<float>(a + b * drawn); });
      return;
  }
  throw InternalError("an initial value without a kind");
}

}  // namespace tessera
