// The tests of layers on CUDA devices share these: the same operation on both devices, and how near the results must
// be.
#pragma once

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "../nn/reference.hpp"
#include "device_data.hpp"

#define TESSERA_CUDA_ELEMENTS float, tessera::bf16, tessera::fp16

namespace tessera::test {

// Sums on the device run in another order and exponentials are the hardware's: a few units of fp32 at the size of the
// largest number here, and one rounding to T more than the CPU's.
template <typename T>
void check_near(const std::vector<T>& computed, const std::vector<T>& expected, double sums = 2e-6) {
  const std::vector<double> values = widened(computed);
  const std::vector<double> wanted = widened(expected);
  REQUIRE(values.size() == wanted.size());
  double largest = 0.0;
  for (const double value : wanted) largest = std::max(largest, std::abs(value));
  std::size_t wrong = 0;
  std::size_t worst = 0;
  double worst_error = -1.0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double error = std::abs(values[i] - wanted[i]);
    const bool both_nan = std::isnan(values[i]) && std::isnan(wanted[i]);
    if (both_nan || values[i] == wanted[i] || error <= 2.0 * rounding<T> * std::abs(wanted[i]) + sums * largest)
      continue;
    ++wrong;
    if (!(error <= worst_error)) worst = i, worst_error = error;
  }
  const double computed_there = values.empty() ? 0.0 : values[worst];
  const double wanted_there = values.empty() ? 0.0 : wanted[worst];
  CAPTURE(worst);
  CAPTURE(computed_there);
  CAPTURE(wanted_there);
  CHECK(wrong == 0);
}

// The same bits, but for those of NaN.
template <typename T>
void check_same(const std::vector<T>& computed, const std::vector<T>& expected) {
  REQUIRE(computed.size() == expected.size());
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < computed.size(); ++i) {
    const double a = widened(std::vector<T>{computed[i]})[0];
    const double b = widened(std::vector<T>{expected[i]})[0];
    if (!(std::isnan(a) && std::isnan(b)) && std::memcmp(&computed[i], &expected[i], sizeof(T)) != 0) ++wrong;
  }
  CHECK(wrong == 0);
}

// A GELU in a product's epilogue may be off by this part of the largest number. cuBLASLt says no more than that it
// takes the approximation by tanh; the hardware's own tanh is off by 2^-11 (PTX ISA, tanh.approx.f32), which the slope
// of numbers around 1 makes at most twice as much.
inline constexpr double gelu_of_epilogue = 0x1p-10;

// A matrix on a device, with guards around it.
template <typename T>
class DeviceMatrix {
 public:
  DeviceMatrix(DeviceKind kind, const std::vector<T>& values, std::size_t rows, std::size_t columns,
               std::size_t shift = 0)
      : buffer_(kind, values, shift), rows_(rows), columns_(columns) {}
  // Not yet written: NaN.
  DeviceMatrix(DeviceKind kind, std::size_t rows, std::size_t columns, std::size_t shift = 0)
      : DeviceMatrix(kind, std::vector<T>(rows * columns, T(std::numeric_limits<float>::quiet_NaN())), rows, columns,
                     shift) {}

  nn::MatrixView<T> view() { return {buffer_.data(), rows_, columns_}; }
  nn::MatrixView<const T> constant() { return view(); }
  T* data() { return buffer_.data(); }
  std::vector<T> values() {
    CHECK(buffer_.guards_intact());
    return buffer_.values();
  }

 private:
  DeviceBuffer<T> buffer_;
  std::size_t rows_;
  std::size_t columns_;
};

}  // namespace tessera::test
