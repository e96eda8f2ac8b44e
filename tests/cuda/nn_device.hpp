// The tests of layers on CUDA devices share these: the same operation on both devices, and how near the results must
// be.
#pragma once

#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <tuple>
#include <vector>

#include "../nn/typed.hpp"
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

// Values that an operation reads or writes, `shift` elements behind an aligned address, and how they are compared: as
// the same bits, or near each other, with what sums may be off by.
template <typename T>
struct Operand {
  using Element = T;
  std::vector<T> on(DeviceKind) const { return values; }
  void check(const std::vector<T>& computed, const std::vector<T>& expected) const {
    sums ? check_near(computed, expected, *sums) : check_same(computed, expected);
  }

  std::vector<T> values;
  std::optional<double> sums = {};
  std::size_t shift = 0;
};
template <typename T>
Operand<T> same(std::vector<T> values, std::size_t shift = 0) {
  return {std::move(values), {}, shift};
}
template <typename T>
Operand<T> near(std::vector<T> values, double sums = 2e-6, std::size_t shift = 0) {
  return {std::move(values), sums, shift};
}
// Memory of as many elements as the device wants, which nobody looks at.
struct Scratch {
  using Element = float;
  std::vector<float> on(DeviceKind kind) const { return std::vector<float>(kind == DeviceKind::cpu ? host : device); }
  void check(const std::vector<float>&, const std::vector<float>&) const {}

  std::size_t host, device, shift = 0;
};

enum class Comparison { with_the_cpu, with_itself };

// Calls operation(stream, a pointer to each operand) on a CUDA device and on the CPU, or twice on the former, where all
// bits must be the same.
template <typename Operation, typename... Operands>
void compare(Comparison comparison, const Operation& operation, const Operands&... operands) {
  const auto results = [&](DeviceKind kind) {
    return [&](auto&&... buffers) {
      Stream stream = stream_on(kind);
      operation(stream, buffers.data()...);
      stream.synchronize();
      CHECK((buffers.guards_intact() && ...));
      return std::tuple(buffers.values()...);
    }(DeviceBuffer<typename Operands::Element>(kind, operands.on(kind), operands.shift)...);
  };
  const auto computed = results(DeviceKind::cuda);
  const auto others = results(comparison == Comparison::with_itself ? DeviceKind::cuda : DeviceKind::cpu);
  std::apply(
      [&](const auto&... found) {
        std::apply(
            [&](const auto&... expected) {
              if (comparison == Comparison::with_itself) return (check_same(found, expected), ...);
              (operands.check(found, expected), ...);
            },
            others);
      },
      computed);
}
template <typename Operation, typename... Operands>
void compare_with_the_cpu(const Operation& operation, const Operands&... operands) {
  compare(Comparison::with_the_cpu, operation, operands...);
}

}  // namespace tessera::test
