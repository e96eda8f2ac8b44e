// Blocks of 8-bit codes against their definition (DType::int8) in scalar code.
#include <algorithm>
#include <cstring>

#include "cases.hpp"
#include "tessera/base/error.hpp"
#include "tessera/kernels/elementwise.hpp"
#include "tessera/kernels/reduce.hpp"

using namespace tessera;
using namespace tessera::test;

namespace {

constexpr std::size_t code_block = block_of(DType::int8);
constexpr std::size_t block_bytes = sizeof(float) + code_block;

std::vector<std::uint8_t> coded_by_definition(const std::vector<float>& values) {
  std::vector<std::uint8_t> result(bytes_of(DType::int8, values.size()).count());
  for (std::size_t begin = 0; begin < values.size(); begin += code_block) {
    bool finite = true;
    float largest = 0.0f;
    for (std::size_t i = begin; i < begin + code_block; ++i) {
      finite = finite && std::isfinite(values[i]);
      largest = std::max(largest, std::fabs(values[i]));
    }
    const bool has_codes = finite && largest >= 0x1p-100f;
    const float scale = !finite ? std::bit_cast<float>(0x7fc00000u) : has_codes ? largest / 127.0f : -0.0f;
    std::uint8_t* const place = result.data() + begin / code_block * block_bytes;
    std::memcpy(place, &scale, sizeof scale);
    for (std::size_t i = 0; i < code_block && has_codes; ++i) {
      const float inverse = 127.0f / largest;
      place[sizeof scale + i] =
          static_cast<std::uint8_t>(static_cast<std::int8_t>(std::nearbyint(values[begin + i] * inverse)));
    }
  }
  return result;
}

std::vector<float> values_of(const std::vector<std::uint8_t>& coded) {
  std::vector<float> result;
  for (std::size_t place = 0; place < coded.size(); place += block_bytes) {
    float scale;
    std::memcpy(&scale, coded.data() + place, sizeof scale);
    for (std::size_t i = 0; i < code_block; ++i) {
      result.push_back(static_cast<float>(static_cast<std::int8_t>(coded[place + sizeof scale + i])) * scale);
    }
  }
  return result;
}

// A block of zeros, one of what is too small, one with an infinity, one with NaN, one of values half way between two
// codes, and ordinary ones.
std::vector<float> blocks_of_all_kinds() {
  std::vector<float> values = numbers(9 * code_block, 5);
  for (std::size_t i = 0; i < code_block; ++i) {
    values[i] = 0.0f;
    values[code_block + i] *= 0x1p-120f;
    values[4 * code_block + i] = static_cast<float>(i % 250) / 2.0f - 60.0f;
    values[8 * code_block + i] = std::ldexp(values[8 * code_block + i], 100);
  }
  values[2 * code_block + 77] = -std::numeric_limits<float>::infinity();
  values[3 * code_block + 200] = std::numeric_limits<float>::quiet_NaN();
  values[4 * code_block + 3] = 127.0f;
  return values;
}

}  // namespace

TEST_CASE_TEMPLATE("codes are those of the definition, from every type and with every instruction set", T, float, bf16,
                   fp16) {
  std::vector<float> values;
  for (const float value : blocks_of_all_kinds()) values.push_back(static_cast<float>(T(value)));
  const std::vector<std::uint8_t> expected = coded_by_definition(values);
  with_each_instruction_set([&] {
    Stream stream = host_stream();
    for (const std::size_t shift : {0u, 1u, 3u}) {
      Buffer<T> from(rounded<T>(values), shift);
      std::vector<std::uint8_t> coded(expected.size() + shift, 9);
      kernels::cast(stream, {coded.data() + shift, DType::int8}, {from.data(), dtype_of<T>}, values.size());
      CHECK(std::equal(expected.begin(), expected.end(), coded.begin() + static_cast<std::ptrdiff_t>(shift)));
    }
  });
}

TEST_CASE_TEMPLATE("codes are read as code times scale, rounded once", T, float, bf16, fp16) {
  const std::vector<std::uint8_t> coded = coded_by_definition(blocks_of_all_kinds());
  const std::vector<float> values = values_of(coded);
  with_each_instruction_set([&] {
    Stream stream = host_stream();
    Buffer<T> to(values.size(), 3);
    kernels::cast(stream, {to.data(), dtype_of<T>}, {coded.data(), DType::int8}, values.size());
    CHECK(differences(to.values(), rounded<T>(values)) == 0);
    CHECK(to.guards_intact());
  });
}

TEST_CASE("a value is off by half a scale at most, and zeros are the zero that changes no sum") {
  const std::vector<float> values = blocks_of_all_kinds();
  const std::vector<float> back = values_of(coded_by_definition(values));
  for (std::size_t i = 0; i < 2 * code_block; ++i) CHECK(std::bit_cast<std::uint32_t>(back[i]) == 0x80000000u);
  for (std::size_t begin = 4 * code_block; begin < values.size(); begin += code_block) {
    float largest = 0.0f, error = 0.0f;
    for (std::size_t i = begin; i < begin + code_block; ++i) {
      largest = std::max(largest, std::fabs(values[i]));
      error = std::max(error, std::fabs(values[i] - back[i]));
    }
    CHECK(error <= largest / 254.0f * 1.00001f);
    CHECK(error > largest / 300.0f);  // no finer than eight bits
  }
}

TEST_CASE("sums of codes have the bits of sums of their values, in every way to add") {
  constexpr std::size_t count = 3 * code_block;
  std::vector<std::vector<std::uint8_t>> coded;
  std::vector<std::vector<float>> plain;
  for (std::uint32_t rank = 0; rank < 5; ++rank) {
    coded.push_back(coded_by_definition(numbers(count, 30 + rank)));
    plain.push_back(values_of(coded.back()));
  }
  for (const std::size_t ranks : {1u, 2u, 5u}) {
    for (const auto how : {kernels::Accumulate::no, kernels::Accumulate::sum, kernels::Accumulate::terms}) {
      std::vector<const void*> of_codes, of_values;
      for (std::size_t rank = 0; rank < ranks; ++rank) {
        of_codes.push_back(coded[rank].data());
        of_values.push_back(plain[rank].data());
      }
      with_each_instruction_set([&] {
        std::vector<float> sum = numbers(count, 4), expected = sum;
        kernels::ranked_sum_cpu({of_codes, DType::int8, sum.data(), count, how, 3.0f});
        kernels::ranked_sum_cpu({of_values, DType::fp32, expected.data(), count, how, 3.0f});
        CHECK(bit_differences(sum, expected) == 0);
      });
    }
  }
}

TEST_CASE("what is not whole blocks is refused") {
  Stream stream = host_stream();
  float values[code_block + 1] = {};
  std::byte coded[2 * block_bytes];
  const void* const contribution = coded;
  CHECK_THROWS_WITH_AS(kernels::cast(stream, {coded, DType::int8}, {values, DType::fp32}, code_block + 1),
                       "a cast of 257 elements is not of whole blocks of int8", UsageError);
  CHECK_THROWS_AS(kernels::cast(stream, {values, DType::fp32}, {coded, DType::int8}, 1), UsageError);
  CHECK_THROWS_WITH_AS(kernels::ranked_sum_cpu({{&contribution, 1}, DType::int8, values, 5}),
                       "a sum of 5 elements is not of whole blocks of int8", UsageError);
}
