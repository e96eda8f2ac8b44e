// Elementwise kernels against one line of scalar code each.
#include "tessera/kernels/elementwise.hpp"

#include "cases.hpp"

using namespace tessera;
using namespace tessera::test;

namespace {

template <typename To, typename From>
void check_cast() {
  Stream stream = host_stream();
  with_each_case([&](std::size_t count, std::size_t shift) {
    Buffer<From> from(rounded<From>(numbers_and_patterns(count, 11)), shift);
    Buffer<To> to(count, shift);
    kernels::cast(stream, {to.data(), dtype_of<To>}, {from.data(), dtype_of<From>}, count);
    std::vector<To> expected;
    for (From value : from.values()) {
      if constexpr (std::is_same_v<To, From>) {
        expected.push_back(value);
      } else {
        expected.push_back(To(static_cast<float>(value)));
      }
    }
    CHECK(bit_differences(to.values(), expected) == 0);
    CHECK(to.guards_intact());
  });
}

template <typename From>
void check_accumulate() {
  Stream stream = host_stream();
  with_each_case([&](std::size_t count, std::size_t shift) {
    Buffer<From> from(rounded<From>(numbers_and_patterns(count, 21)), shift);
    Buffer<float> to(numbers_and_patterns(count, 22), shift);
    std::vector<float> expected = to.values();
    for (std::size_t i = 0; i < count; ++i) expected[i] += static_cast<float>(from.data()[i]);
    kernels::accumulate(stream, to.data(), {from.data(), dtype_of<From>}, count);
    CHECK(differences(to.values(), expected) == 0);
    CHECK(to.guards_intact());
  });
}

// Every 16-bit pattern as a float, the middle to its neighbour, and what lies next to both.
template <typename Half>
std::vector<float> patterns_and_middles() {
  std::vector<float> values;
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    Half half, next;
    half.bits = static_cast<std::uint16_t>(bits);
    next.bits = static_cast<std::uint16_t>(bits + 1);
    const float middle = (static_cast<float>(half) + static_cast<float>(next)) / 2;
    values.insert(values.end(),
                  {static_cast<float>(half), middle, std::nextafter(middle, 0.0f), std::nextafter(middle, 1e38f)});
  }
  return values;
}

}  // namespace

TEST_CASE_TEMPLATE("cast gives the bits of the scalar conversion for every pair of types", From, float, bf16, fp16) {
  check_cast<float, From>();
  check_cast<bf16, From>();
  check_cast<fp16, From>();
}

TEST_CASE_TEMPLATE("cast gives the scalar bits at and between all neighbours of the 16-bit types", Half, bf16, fp16) {
  Stream stream = host_stream();
  std::vector<float> values = patterns_and_middles<Half>();
  for (std::uint64_t bits = 0; bits < 0x1'0000'0000; bits += 4099) {
    values.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(bits)));
  }
  const std::vector<Half> expected = rounded<Half>(values);
  std::vector<float> back;
  for (Half half : expected) back.push_back(static_cast<float>(half));
  with_each_instruction_set([&] {
    std::vector<Half> halves(values.size());
    kernels::cast(stream, {halves.data(), dtype_of<Half>}, {values.data(), DType::fp32}, values.size());
    CHECK(bit_differences(halves, expected) == 0);
    std::vector<float> widened(values.size());
    kernels::cast(stream, {widened.data(), DType::fp32}, {halves.data(), dtype_of<Half>}, values.size());
    CHECK(bit_differences(widened, back) == 0);
  });
}

TEST_CASE("cast of equal types onto itself leaves the bits alone, signalling NaNs too") {
  Stream stream = host_stream();
  std::vector<float> values = numbers_and_patterns(129, 31);
  const std::vector<float> before = values;
  kernels::cast(stream, {values.data(), DType::fp32}, {values.data(), DType::fp32}, values.size());
  CHECK(bit_differences(values, before) == 0);
}

TEST_CASE_TEMPLATE("a fill with -0 covers its elements and no others, and adds nothing", T, float, bf16, fp16) {
  Stream stream = host_stream();
  with_each_case([&](std::size_t count, std::size_t shift) {
    Buffer<T> data(std::vector<T>(count, T(5.0f)), shift);
    kernels::fill_negative_zero(stream, {data.data(), dtype_of<T>}, count);
    CHECK(bit_differences(data.values(), std::vector<T>(count, T(-0.0f))) == 0);
    CHECK(data.guards_intact());
  });
}

TEST_CASE_TEMPLATE("accumulate adds in fp32, element by element", From, float, bf16, fp16) { check_accumulate<From>(); }

TEST_CASE("divide is a true division, and division by 1 leaves the bits alone") {
  Stream stream = host_stream();
  with_each_case([&](std::size_t count, std::size_t shift) {
    for (float divisor : {1.0f, 3.0f, 7.0f, 1e-30f, -0.1f}) {
      Buffer<float> data(numbers_and_patterns(count, 41), shift);
      std::vector<float> expected = data.values();
      if (divisor != 1.0f) {
        for (float& value : expected) value /= divisor;
      }
      kernels::divide(stream, data.data(), divisor, count);
      CHECK((divisor == 1.0f ? bit_differences(data.values(), expected) : differences(data.values(), expected)) == 0);
      CHECK(data.guards_intact());
    }
  });
}

TEST_CASE("fill_zero and poison fill exactly their bytes") {
  Stream stream = host_stream();
  for (std::size_t count : sizes) {
    Buffer<bf16> data(rounded<bf16>(numbers(count, 51)), 1);
    const Bytes size(2 * count);
    kernels::poison(stream, data.data(), size);
    for (bf16 value : data.values()) REQUIRE(std::isnan(static_cast<float>(value)));
    CHECK(data.guards_intact());
    kernels::fill_zero(stream, data.data(), size);
    for (bf16 value : data.values()) REQUIRE(value.bits == 0);
    CHECK(data.guards_intact());
  }
}

TEST_CASE("poison is a NaN in every type") {
  Stream stream = host_stream();
  float word = 0;
  fp16 half;
  kernels::poison(stream, &word, Bytes(sizeof word));
  kernels::poison(stream, &half, Bytes(sizeof half));
  CHECK(std::isnan(word));
  CHECK(std::isnan(static_cast<float>(half)));
}

TEST_CASE("kernels run in the stream's order and do not synchronise") {
  Stream stream(Device::cpu(), {.delay_seed = 7});
  std::vector<float> from(1025, 1.5f), to(1025);
  std::vector<bf16> half(1025);
  kernels::cast(stream, {half.data(), DType::bf16}, {from.data(), DType::fp32}, from.size());
  kernels::fill_zero(stream, to.data(), Bytes(4 * to.size()));
  kernels::accumulate(stream, to.data(), {half.data(), DType::bf16}, to.size());
  kernels::accumulate(stream, to.data(), {half.data(), DType::bf16}, to.size());
  kernels::divide(stream, to.data(), 2.0f, to.size());
  stream.synchronize();
  CHECK(bit_differences(to, from) == 0);
}
