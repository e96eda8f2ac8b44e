// The row loops themselves: the exponential's error, conversions to and from half precision, and the same bits on every
// instruction set.
#include <cmath>
#include <cstring>
#include <limits>

#include "instruction_sets.hpp"
#include "src/rows/active_rows.hpp"
#include "tessera/nn/gelu.hpp"
#include "typed.hpp"

using namespace tessera;
using namespace tessera::nn;

namespace rows_test {

template <typename T>
std::vector<T> exponentials(const std::vector<T>& x) {
  std::vector<T> result = unset<T>(x.size());
  active_rows().softmax_scaled(
      {.format = format_of<T>, .logits = x.data(), .to = result.data(), .count = x.size(), .largest = 0, .factor = 1});
  return result;
}

// In units of the last place of the exact result.
double error(float computed, double exact) {
  const auto nearest = static_cast<float>(exact);
  const float unit = std::nextafter(nearest, std::numeric_limits<float>::infinity()) - nearest;
  return std::abs(static_cast<double>(computed) - exact) / static_cast<double>(unit);
}

template <typename Half>
std::vector<Half> every_half() {
  std::vector<Half> result(65536);
  for (std::size_t i = 0; i < result.size(); ++i) result[i].bits = static_cast<std::uint16_t>(i);
  return result;
}

PanelRows panel(Format format, const void* from, void* to, std::size_t count) {
  return {.format = format,
          .from = from,
          .from_stride = count,
          .to = to,
          .to_stride = count,
          .rows = 1,
          .columns = count,
          .factors = nullptr};
}

template <typename Half>
std::vector<float> loaded(const std::vector<Half>& from) {
  std::vector<float> to(from.size());
  active_rows().load_panel(panel(format_of<Half>, from.data(), to.data(), from.size()));
  return to;
}

template <typename Half>
std::vector<Half> rounded(const std::vector<float>& from) {
  std::vector<Half> to(from.size());
  active_rows().store_panel(panel(format_of<Half>, from.data(), to.data(), from.size()));
  return to;
}

// Every element of Half, what lies halfway to the next, the floats beside that, and others of every exponent.
template <typename Half>
std::vector<float> floats_around() {
  std::vector<float> result;
  for (const Half half : every_half<Half>()) {
    const auto value = static_cast<float>(half);
    Half next = half;
    ++next.bits;
    const float middle = value / 2.0f + static_cast<float>(next) / 2.0f;
    result.insert(result.end(), {value, middle, std::nextafter(middle, 0.0f), std::nextafter(middle, 2.0f * middle)});
  }
  for (std::uint32_t bits = 0; bits < 0xfff00000u; bits += 0x12345) result.push_back(std::bit_cast<float>(bits));
  return result;
}

TEST_CASE("the_exponential_is_within_one_unit_in_the_last_place") {
  std::vector<float> x;
  for (float value = -86.98f; value < 88.7f; value += 0.00037f) x.push_back(value);
  for (float value = -1.0f; value < 1.0f; value += 0.0000071f) x.push_back(value);
  const std::vector<float> computed = exponentials(x);
  double largest = 0.0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    largest = std::max(largest, error(computed[i], std::exp(static_cast<double>(x[i]))));
  }
  CAPTURE(largest);
  CHECK(largest < 1.0);
}

TEST_CASE("the_exponential_keeps_to_its_limits") {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  const std::vector<float> computed =
      exponentials<float>({0.0f, -0.0f, -infinity, infinity, -1e30f, 1e30f, -87.0f, 88.8f, unset<float>(1)[0]});
  CHECK(std::vector<float>(computed.begin(), computed.end() - 1) ==
        std::vector<float>{1.0f, 1.0f, 0.0f, infinity, 0.0f, infinity, 0.0f, infinity});
  CHECK(std::isnan(computed.back()));
}

TEST_CASE_TEMPLATE("half_precision_is_converted_with_the_bits_of_the_base", Half, bf16, fp16) {
  const std::vector<Half> halves = every_half<Half>();
  std::vector<float> wide;
  for (const Half half : halves) wide.push_back(static_cast<float>(half));
  check_same_bits([&] {
    CHECK(bytes_of(loaded(halves)) == bytes_of(wide));
    return bytes_of(loaded(halves));
  });
  const std::vector<float> floats = floats_around<Half>();
  std::vector<Half> narrow;
  for (const float value : floats) narrow.push_back(Half(value));
  check_same_bits([&] {
    CHECK(bytes_of(rounded<Half>(floats)) == bytes_of(narrow));
    return bytes_of(rounded<Half>(floats));
  });
}

TEST_CASE("gelu_has_its_limits_far_from_0") {
  Stream stream = immediate_stream();
  const std::vector<float> x = {-1e4f, -20.0f, 20.0f, 1e4f};
  const std::vector<float> ones(4, 1.0f);
  std::vector<float> y = unset<float>(4);
  std::vector<float> dx = unset<float>(4);
  gelu_forward<float>(stream, matrix(x, 1, 4), matrix(y, 1, 4));
  gelu_backward<float>(stream, matrix(x, 1, 4), matrix(ones, 1, 4), matrix(dx, 1, 4));
  CHECK(y == std::vector<float>{0.0f, 0.0f, 20.0f, 1e4f});
  CHECK(dx == std::vector<float>{0.0f, 0.0f, 1.0f, 1.0f});
  stream.synchronize();
}

}  // namespace rows_test
