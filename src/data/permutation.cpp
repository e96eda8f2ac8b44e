// Stored: Fisher-Yates over SplitMix64; the standard library's shuffle and distributions differ between
// implementations. Computed: a Feistel network permutes the least power of two that the size fits in, and who lands
// beyond the size goes on through it until he does not, which is a permutation of what is left (cycle walking: Black
// and Rogaway, "Ciphers with Arbitrary Finite Domains", 2002).
#include "data/permutation.hpp"

#include <algorithm>
#include <bit>
#include <numeric>
#include <utility>

namespace tessera::data {

namespace {

// The mixing function of SplitMix64 (Steele, Lea, Flood 2014).
std::uint64_t mixed(std::uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

std::uint64_t mask(unsigned bits) { return (std::uint64_t{1} << bits) - 1; }

// SplitMix64.
class Generator {
 public:
  Generator(std::uint64_t seed, std::uint64_t stream) : state_(seed) {
    // Mixed before it is added: neighbouring seeds and streams must not share a sequence.
    state_ = (*this)() + stream;
    state_ = (*this)();
  }

  std::uint64_t operator()() {
    state_ += 0x9e3779b97f4a7c15u;
    return mixed(state_);
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

Permutation::Permutation(std::uint64_t size, std::uint64_t seed, std::uint64_t stream) : size_(size) {
  // Two halves of at least a bit each.
  const unsigned bits = std::max(6u, static_cast<unsigned>(std::bit_width(size == 0 ? 0 : size - 1)));
  low_bits_ = bits / 2;
  high_bits_ = bits - low_bits_;
  Generator random(seed, stream);
  for (std::uint64_t& key : keys_) key = random();
}

std::uint64_t Permutation::operator[](std::uint64_t place) const {
  do {
    std::uint64_t low = place & mask(low_bits_);
    std::uint64_t high = place >> low_bits_;
    for (std::size_t round = 0; round < rounds; round += 2) {
      high ^= mixed(low + keys_[round]) & mask(high_bits_);
      low ^= mixed(high + keys_[round + 1]) & mask(low_bits_);
    }
    place = high << low_bits_ | low;
  } while (place >= size_);
  return place;
}

void permute(std::span<std::size_t> order, std::uint64_t seed, std::uint64_t stream) {
  std::iota(order.begin(), order.end(), std::size_t{0});
  Generator random(seed, stream);
  for (std::size_t left = order.size(); left > 1; --left) std::swap(order[left - 1], order[random.below(left)]);
}

}  // namespace tessera::data
