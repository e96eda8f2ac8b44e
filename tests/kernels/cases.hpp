// The tests of kernels share these: sizes, buffers that start unaligned and notice writes outside, values of all kinds,
// and a loop over the instruction sets of this machine.
#pragma once

#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include "tessera/base/half.hpp"
#include "tessera/device/stream.hpp"
#include "tessera/kernels/instruction_set.hpp"
#include "tessera/kernels/optimizer.hpp"

namespace tessera::test {

inline constexpr std::size_t sizes[] = {0, 1, 2, 3, 15, 16, 17, 63, 64, 65, 127, 128, 129, 1023, 1024, 1025, 4099};

// Elements that begin `shift` elements after an aligned address. With a shift there are guards at both ends; without,
// the buffer ends where its allocation does, so that AddressSanitizer sees a read beyond it.
template <typename T>
class Buffer {
 public:
  explicit Buffer(std::size_t count, std::size_t shift = 0) : shift_(shift), all_(count + 2 * shift, guard()) {}
  Buffer(const std::vector<T>& values, std::size_t shift = 0) : Buffer(values.size(), shift) {
    for (std::size_t i = 0; i < values.size(); ++i) data()[i] = values[i];
  }

  T* data() { return all_.data() + shift_; }
  std::vector<T> values() { return {data(), data() + all_.size() - 2 * shift_}; }
  bool guards_intact() const {
    for (std::size_t i = 0; i < shift_; ++i) {
      if (!same(all_[i]) || !same(all_[all_.size() - 1 - i])) return false;
    }
    return true;
  }

 private:
  static T guard() { return T(-77.0f); }
  static bool same(T value) { return static_cast<float>(value) == static_cast<float>(guard()); }

  std::size_t shift_;
  std::vector<T> all_;
};

// Ordinary numbers of many magnitudes.
inline std::vector<float> numbers(std::size_t count, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> mantissa;
  std::uniform_int_distribution<int> exponent(-12, 8);
  std::vector<float> values(count);
  for (float& value : values) value = std::ldexp(mantissa(random), exponent(random));
  return values;
}

// Numbers with one in four replaced by an arbitrary pattern: NaN, infinity, zero, subnormal, huge.
inline std::vector<float> numbers_and_patterns(std::size_t count, std::uint32_t seed) {
  constexpr std::uint32_t special[] = {0x00000000, 0x80000000, 0x7f800000, 0xff800000, 0x7fc00000,
                                       0xffc12345, 0x7f800001, 0xff923456, 0x00000001, 0x807fffff,
                                       0x7f7fffff, 0xff7fffff, 0x33000000, 0x477ff000};
  std::mt19937 random(seed);
  std::vector<float> values = numbers(count, seed + 1);
  for (float& value : values) {
    if (random() % 4 != 0) continue;
    const std::uint32_t pattern =
        random() % 2 ? special[random() % std::size(special)] : static_cast<std::uint32_t>(random());
    value = std::bit_cast<float>(pattern);
  }
  return values;
}

template <typename T>
std::vector<T> rounded(const std::vector<float>& values) {
  std::vector<T> result;
  for (float value : values) result.push_back(T(value));
  return result;
}

template <typename T>
std::uint32_t bits_of(T value) {
  if constexpr (std::is_same_v<T, float>) {
    return std::bit_cast<std::uint32_t>(value);
  } else {
    return value.bits;
  }
}

// The same bits, or both NaN: of two NaNs that meet in one operation, either payload may survive.
template <typename T>
std::size_t differences(const std::vector<T>& a, const std::vector<T>& b) {
  std::size_t different = a.size() != b.size();
  for (std::size_t i = 0; i < a.size() && i < b.size(); ++i) {
    const bool both_nan = std::isnan(static_cast<float>(a[i])) && std::isnan(static_cast<float>(b[i]));
    different += !both_nan && bits_of(a[i]) != bits_of(b[i]);
  }
  return different;
}

// The same bits, NaNs too.
template <typename T>
std::size_t bit_differences(const std::vector<T>& a, const std::vector<T>& b) {
  std::size_t different = a.size() != b.size();
  for (std::size_t i = 0; i < a.size() && i < b.size(); ++i) different += bits_of(a[i]) != bits_of(b[i]);
  return different;
}

// body() with each instruction set that this machine has, then the one before again.
template <typename Body>
void with_each_instruction_set(Body body) {
  const kernels::InstructionSet before = kernels::active_instruction_set();
  for (kernels::InstructionSet set : kernels::available_instruction_sets()) {
    kernels::select_instruction_set(set);
    CAPTURE(to_string(set));
    body();
  }
  kernels::select_instruction_set(before);
}

// body(count, shift) with each instruction set, for all sizes and for starts of every kind.
template <typename Body>
void with_each_case(Body body) {
  with_each_instruction_set([&] {
    for (std::size_t count : sizes) {
      for (std::size_t shift : {0u, 1u, 3u}) {
        CAPTURE(count);
        CAPTURE(shift);
        body(count, shift);
      }
    }
  });
}

// An optimizer's numbers in the midst of a run.
inline kernels::StepScalars scalars_at_step_3() {
  kernels::StepScalars scalars;
  scalars.step = 3;
  scalars.decay_power[0] = 0.9 * 0.9 * 0.9;
  scalars.decay_power[1] = 0.95 * 0.95 * 0.95;
  scalars.gradient_factor = 0.37f;
  return scalars;
}
inline constexpr kernels::AdamWSettings adamw_settings = {
    .learning_rate = 3e-3f, .beta1 = 0.9f, .beta2 = 0.95f, .epsilon = 1e-8f, .weight_decay = 0.1f};

inline Stream host_stream() { return Stream(Device::cpu(), {.mode = StreamMode::immediate}); }

}  // namespace tessera::test
