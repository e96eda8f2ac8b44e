// Fisher-Yates over SplitMix64. The standard library's shuffle and distributions differ between implementations.
#include "data/permutation.hpp"

#include <numeric>
#include <utility>

namespace tessera::data {

namespace {

// SplitMix64 (Steele, Lea, Flood 2014).
class Generator {
 public:
  Generator(std::uint64_t seed, std::uint64_t stream) : state_(seed) {
    // Mixed before it is added: neighbouring seeds and streams must not share a sequence.
    state_ = (*this)() + stream;
    state_ = (*this)();
  }

  std::uint64_t operator()() {
    state_ += 0x9e3779b97f4a7c15u;
    std::uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }

  // Uniform in 0 … bound - 1, without the bias of a plain remainder.
  std::uint64_t below(std::uint64_t bound) {
    const std::uint64_t first_fair = (0 - bound) % bound;
    std::uint64_t value = (*this)();
    while (value < first_fair) value = (*this)();
    return value % bound;
  }

 private:
  std::uint64_t state_;
};

}  // namespace

void permute(std::span<std::size_t> order, std::uint64_t seed, std::uint64_t stream) {
  std::iota(order.begin(), order.end(), std::size_t{0});
  Generator random(seed, stream);
  for (std::size_t left = order.size(); left > 1; --left) std::swap(order[left - 1], order[random.below(left)]);
}

}  // namespace tessera::data
