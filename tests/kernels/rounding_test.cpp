// Stochastic rounding: the formula, element by element, whatever the instruction set, the threads and how a tensor is
// cut; and its mean.
#include "tessera/kernels/rounding.hpp"

#include <bit>
#include <cmath>
#include <string>

#include "base/hash.hpp"
#include "cases.hpp"
#include "tessera/device/parallel.hpp"

using namespace tessera;
using namespace tessera::test;

namespace {

// One element by the contract.
std::uint16_t rounded_bits(float value, PhiloxKey key, std::uint64_t element, std::uint64_t step) {
  const std::uint64_t counter = element / 128 * 16 + element % 16;
  const PhiloxCounter words = philox(
      {std::uint32_t(counter), std::uint32_t(counter >> 32), std::uint32_t(step), std::uint32_t(step >> 32)}, key);
  const std::uint32_t word = words[element / 32 % 4];
  const std::uint32_t drawn = element / 16 % 2 == 0 ? word & 0xffff : word >> 16;
  if (std::isnan(value)) return bf16(value).bits;
  return static_cast<std::uint16_t>((std::bit_cast<std::uint32_t>(value) + drawn) >> 16);
}

std::vector<bf16> rounded_at(const std::vector<float>& values, PhiloxKey key, std::uint64_t first, std::int64_t step) {
  Stream stream(Device::cpu(), {.mode = StreamMode::immediate});
  const kernels::StepScalars scalars{.step = step};
  Buffer<bf16> to(values.size(), 1);
  kernels::round_stochastically(stream, {to.data(), values.data(), values.size(), key, first}, &scalars);
  CHECK(to.guards_intact());
  return to.values();
}

}  // namespace

TEST_CASE("stochastic rounding is a function of key, element and step") {
  with_each_instruction_set([] {
    for (const std::size_t size : sizes) {
      const std::vector<float> values = numbers_and_patterns(size, 17);
      for (const std::uint64_t first :
           {std::uint64_t{0}, std::uint64_t{128}, std::uint64_t{77}, std::uint64_t{1} << 40}) {
        const PhiloxKey key = key_of(5, "blocks.3.weight");
        const std::vector<bf16> rounded = rounded_at(values, key, first, 0x1'0000'0003);
        std::size_t wrong = 0;
        for (std::size_t i = 0; i < size; ++i) {
          wrong += rounded[i].bits != rounded_bits(values[i], key, first + i, 0x1'0000'0003);
        }
        CHECK(wrong == 0);
      }
    }
  });
}

TEST_CASE("threads share stochastic rounding without changing a bit") {
  const std::vector<float> values = numbers(200'003, 3);
  const PhiloxKey key = key_of(1, "w");
  const std::vector<bf16> alone = rounded_at(values, key, 5, 2);
  parallel::set_threads(3);
  CHECK(differences(rounded_at(values, key, 5, 2), alone) == 0);
  parallel::set_threads(1);
}

// A value between two neighbours goes up as often as it is near the upper one: the mean of n roundings is the value
// within five standard deviations. Other elements, steps, seeds and names draw other bits.
TEST_CASE("the mean of stochastic roundings is the value") {
  constexpr std::size_t count = 1 << 16;
  for (const float value : {1.0f + 0x1p-10f, -3.0f - 0x1p-12f, 0.3f, 1e-30f, 65504.0f}) {
    const float down = std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) & 0xffff0000u);
    const float up = std::bit_cast<float>((std::bit_cast<std::uint32_t>(value) & 0xffff0000u) + 0x10000u);
    const double part = (double(value) - down) / (double(up) - down);
    const double deviation = std::sqrt(part * (1 - part) / count);
    for (const std::int64_t step : {1, 2, 1000}) {
      std::size_t ups = 0;
      for (const bf16 each : rounded_at(std::vector<float>(count, value), key_of(7, "w"), 64, step)) {
        CHECK((float(each) == down || float(each) == up));
        ups += float(each) == up;
      }
      CHECK(std::abs(double(ups) / count - part) < 5 * deviation + 0x1p-16);
    }
  }
  const std::vector<float> same(1000, 1.0f + 0x1p-8f);
  const std::vector<bf16> drawn = rounded_at(same, key_of(7, "w"), 0, 1);
  for (const auto& other : {rounded_at(same, key_of(8, "w"), 0, 1), rounded_at(same, key_of(7, "v"), 0, 1),
                            rounded_at(same, key_of(7, "w"), 0, 2), rounded_at(same, key_of(7, "w"), 1000, 1)}) {
    CHECK(differences(other, drawn) > 400);
    CHECK(differences(other, drawn) < 600);
  }
}

TEST_CASE("stochastic rounding leaves what bf16 can hold as it is") {
  std::vector<float> values;
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) values.push_back(std::bit_cast<float>(bits << 16));
  const std::vector<bf16> rounded = rounded_at(values, key_of(1, "w"), 3, 9);
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < values.size(); ++i) wrong += rounded[i].bits != bf16(values[i]).bits;
  CHECK(wrong == 0);
}
