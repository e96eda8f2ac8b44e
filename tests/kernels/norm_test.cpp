// The squared norm against its documented order, written out.
#include "tessera/kernels/norm.hpp"

#include <algorithm>

#include "cases.hpp"
#include "tessera/device/parallel.hpp"

using namespace tessera;
using namespace tessera::test;

namespace {

float block_sum(std::span<const float> block) {
  float lane[16] = {};
  for (std::size_t i = 0; i < block.size(); ++i) lane[i % 16] += block[i] * block[i];
  float eight[8], four[4];
  for (std::size_t k = 0; k < 8; ++k) eight[k] = lane[k] + lane[k + 8];
  for (std::size_t k = 0; k < 4; ++k) four[k] = eight[k] + eight[k + 4];
  return (four[0] + four[2]) + (four[1] + four[3]);
}

double documented_sum(std::span<const float> data) {
  std::vector<double> lane(kernels::norm_lanes, 0.0);
  for (std::size_t at = 0; at < data.size(); at += kernels::norm_block) {
    lane[at / kernels::norm_block % kernels::norm_lanes] +=
        static_cast<double>(block_sum(data.subspan(at, std::min(kernels::norm_block, data.size() - at))));
  }
  for (std::size_t half = lane.size() / 2; half > 0; half /= 2) {
    for (std::size_t k = 0; k < half; ++k) lane[k] += lane[k + half];
  }
  return lane.front();
}

double sum_of_squares(float* data, std::size_t count) {
  Stream stream = host_stream();
  double result = -1.0;
  kernels::sum_of_squares(stream, data, count, &result);
  return result;
}

}  // namespace

TEST_CASE("the sum of squares has the bits of the documented order") {
  with_each_case([](std::size_t count, std::size_t shift) {
    Buffer<float> data(numbers(count, 61), shift);
    const double expected = documented_sum({data.data(), count});
    CHECK(std::bit_cast<std::uint64_t>(sum_of_squares(data.data(), count)) == std::bit_cast<std::uint64_t>(expected));
  });
}

TEST_CASE_TEMPLATE("the sum of squares of 16 bits has the bits of the same values in fp32", T, bf16, fp16) {
  Stream stream = host_stream();
  with_each_case([&](std::size_t count, std::size_t shift) {
    Buffer<T> halves(rounded<T>(numbers(count, 61)), shift);
    std::vector<float> wide(count);
    kernels::cast(stream, {wide.data(), DType::fp32}, {halves.data(), dtype_of<T>}, count);
    double result = -1.0;
    kernels::sum_of_squares(stream, {halves.data(), dtype_of<T>}, count, &result);
    CHECK(std::bit_cast<std::uint64_t>(result) == std::bit_cast<std::uint64_t>(documented_sum(wide)));
  });
}

TEST_CASE("threads of the stream's change no bit of the sum of squares") {
  constexpr std::size_t each_lane_once = kernels::norm_lanes * kernels::norm_block;
  for (const std::size_t count : {std::size_t{0}, std::size_t{70001}, each_lane_once + 3 * kernels::norm_block + 1}) {
    const std::vector<float> data = numbers(count, 61);
    for (const int threads : {2, 3}) {
      parallel::set_threads(threads);
      double result = -1.0;
      {
        Stream stream = host_stream();
        kernels::sum_of_squares(stream, data.data(), count, &result, kernels::Threads::all);
      }
      CHECK(std::bit_cast<std::uint64_t>(result) == std::bit_cast<std::uint64_t>(documented_sum(data)));
    }
  }
  parallel::set_threads(1);
}

TEST_CASE("the test's numbers tell the documented order from others") {
  const std::vector<float> data = numbers(4099, 61);
  double straight = 0.0;
  for (float x : data) straight += static_cast<double>(x * x);
  CHECK(straight != documented_sum(data));
  CHECK(straight == doctest::Approx(documented_sum(data)).epsilon(1e-5));
}

TEST_CASE("a NaN or an infinity anywhere is seen, a zero padding is not") {
  with_each_instruction_set([] {
    for (std::size_t where : {0u, 15u, 16u, 1023u, 1024u, 1029u}) {
      std::vector<float> data = numbers(1030, 71);
      data[where] = -HUGE_VALF;
      CHECK(std::isinf(sum_of_squares(data.data(), data.size())));
      data[where] = std::nanf("");
      CHECK(std::isnan(sum_of_squares(data.data(), data.size())));
    }
    std::vector<float> data = numbers(1030, 71);
    const double unpadded = sum_of_squares(data.data(), data.size());
    data.resize(3000);
    CHECK(sum_of_squares(data.data(), data.size()) == unpadded);
  });
}
