// The CPU kernels for any processor: sixteen floats in plain C++, what every other vector type must match bit by bit.
#include <cstddef>
#include <cstdint>

#include "kernels/cpu/kernels_of_lanes.hpp"
#include "tessera/base/half.hpp"

namespace tessera::kernels {

struct PortableLanes {
  static constexpr std::size_t count = 16;
  float lane[count];

  template <typename Function>
  static PortableLanes each(Function value_of) {
    PortableLanes result;
    for (std::size_t k = 0; k < count; ++k) result.lane[k] = value_of(k);
    return result;
  }

  static PortableLanes all(float value) {
    return each([&](std::size_t) { return value; });
  }
  static PortableLanes load(const float* from) {
    PortableLanes result;
    __builtin_memcpy(result.lane, from, sizeof result.lane);
    return result;
  }
  static PortableLanes load_bf16(const std::uint16_t* from) { return load_as<bf16>(from); }
  static PortableLanes load_fp16(const std::uint16_t* from) { return load_as<fp16>(from); }

  static PortableLanes load_codes(const std::int8_t* from) {
    return each([&](std::size_t k) { return static_cast<float>(from[k]); });
  }

  void store(float* to) const { __builtin_memcpy(to, lane, sizeof lane); }
  void store_bf16(std::uint16_t* to) const { store_as<bf16>(to); }
  void store_fp16(std::uint16_t* to) const { store_as<fp16>(to); }

  void store_lowest_bytes(std::int8_t* to) const {
    for (std::size_t k = 0; k < count; ++k)
      to[k] = static_cast<std::int8_t>(__builtin_bit_cast(std::uint32_t, lane[k]) & 0xffu);
  }

  // Past the caches, where a vector type can.
  void stream(float* to) const { store(to); }
  void stream_bf16(std::uint16_t* to) const { store_bf16(to); }
  void stream_fp16(std::uint16_t* to) const { store_fp16(to); }
  // Two at once, next to each other.
  static void stream_bf16(std::uint16_t* to, const PortableLanes& a, const PortableLanes& b) {
    a.stream_bf16(to);
    b.stream_bf16(to + 16);
  }
  static void stream_fp16(std::uint16_t* to, const PortableLanes& a, const PortableLanes& b) {
    a.stream_fp16(to);
    b.stream_fp16(to + 16);
  }
  static void fence() {}

  // The lanes k and k + 8 are added, then k and k + 4, then + 2, then + 1.
  float pairwise_sum() const {
    PortableLanes sum = *this;
    for (std::size_t half = count / 2; half > 0; half /= 2) {
      for (std::size_t k = 0; k < half; ++k) sum.lane[k] += sum.lane[k + half];
    }
    return sum.lane[0];
  }

  friend PortableLanes operator+(const PortableLanes& a, const PortableLanes& b) {
    return each([&](std::size_t k) { return a.lane[k] + b.lane[k]; });
  }
  friend PortableLanes operator-(const PortableLanes& a, const PortableLanes& b) {
    return each([&](std::size_t k) { return a.lane[k] - b.lane[k]; });
  }
  friend PortableLanes operator*(const PortableLanes& a, const PortableLanes& b) {
    return each([&](std::size_t k) { return a.lane[k] * b.lane[k]; });
  }
  friend PortableLanes operator/(const PortableLanes& a, const PortableLanes& b) {
    return each([&](std::size_t k) { return a.lane[k] / b.lane[k]; });
  }
  friend PortableLanes fma(const PortableLanes& a, const PortableLanes& b, const PortableLanes& c) {
    return each([&](std::size_t k) { return __builtin_fmaf(a.lane[k], b.lane[k], c.lane[k]); });
  }
  friend PortableLanes square_root(const PortableLanes& a) {
    return each([&](std::size_t k) { return __builtin_sqrtf(a.lane[k]); });
  }

  // Compares integers, so that NaNs are larger than infinity.
  friend PortableLanes larger_magnitudes(const PortableLanes& a, const PortableLanes& b) {
    return each([&](std::size_t k) {
      const auto largest = __builtin_bit_cast(std::uint32_t, a.lane[k]);
      const auto magnitude = __builtin_bit_cast(std::uint32_t, b.lane[k]) & 0x7fffffffu;
      return __builtin_bit_cast(float, largest > magnitude ? largest : magnitude);
    });
  }

  class Slices {
   public:
    explicit Slices(const Rounders& rounders) : rounders_(rounders) {}

    void add(const PortableLanes& x) {
      for (const float number : x.lane) add_slices(static_cast<double>(number), rounders_, sums_);
    }
    void store(std::uint64_t (&sums)[3]) const {
      for (int k = 0; k < 3; ++k) sums[k] = sums_[k];
    }

   private:
    Rounders rounders_;
    std::uint64_t sums_[3] = {0, 0, 0};
  };

 private:
  template <typename Half>
  static PortableLanes load_as(const std::uint16_t* from) {
    return each([&](std::size_t k) {
      Half half;
      half.bits = from[k];
      return static_cast<float>(half);
    });
  }
  template <typename Half>
  void store_as(std::uint16_t* to) const {
    for (std::size_t k = 0; k < count; ++k) to[k] = Half(lane[k]).bits;
  }
};

const KernelTable& portable_table() { return table_of_lanes<PortableLanes>; }

}  // namespace tessera::kernels
