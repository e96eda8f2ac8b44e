// Sums over ranks against the rank order, written out.
#include "tessera/kernels/reduce.hpp"

#include "cases.hpp"
#include "tessera/base/error.hpp"

using namespace tessera;
using namespace tessera::test;

namespace {

template <typename T>
struct Ranks {
  Ranks(std::size_t ranks, std::size_t count, std::size_t shift) {
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      const auto seed = static_cast<std::uint32_t>(100 + rank);
      buffers.emplace_back(rounded<T>(rank % 3 == 2 ? numbers_and_patterns(count, seed) : numbers(count, seed)), shift);
    }
    for (Buffer<T>& buffer : buffers) pointers.push_back(buffer.data());
  }
  std::vector<Buffer<T>> buffers;
  std::vector<const void*> pointers;
};

template <typename T>
std::vector<float> in_rank_order(Ranks<T>& ranks, const std::vector<float>& result, bool accumulate, float divisor) {
  std::vector<float> sums(result.size());
  for (std::size_t i = 0; i < sums.size(); ++i) {
    float sum = static_cast<float>(ranks.buffers[0].data()[i]);
    for (std::size_t rank = 1; rank < ranks.buffers.size(); ++rank)
      sum += static_cast<float>(ranks.buffers[rank].data()[i]);
    if (accumulate) sum = result[i] + sum;
    sums[i] = divisor == 1.0f ? sum : sum / divisor;
  }
  return sums;
}

template <typename T>
void check_sums(std::size_t rank_count, bool accumulate, float divisor) {
  CAPTURE(rank_count);
  with_each_case([&](std::size_t count, std::size_t shift) {
    Ranks<T> ranks(rank_count, count, shift);
    Buffer<float> result(numbers(count, 81), shift);
    const std::vector<float> expected = in_rank_order(ranks, result.values(), accumulate, divisor);
    kernels::ranked_sum_cpu({.contributions = ranks.pointers,
                             .type = dtype_of<T>,
                             .result = result.data(),
                             .count = count,
                             .accumulate = accumulate,
                             .divisor = divisor});
    CHECK(differences(result.values(), expected) == 0);
    CHECK(result.guards_intact());
  });
}

}  // namespace

TEST_CASE_TEMPLATE("the sum has the bits of the rank order", T, float, bf16, fp16) {
  for (std::size_t ranks : {1u, 2u, 3u, 5u, 7u, 8u}) check_sums<T>(ranks, false, 1.0f);
  check_sums<T>(3, true, 1.0f);
  check_sums<T>(3, false, 3.0f);
  check_sums<T>(7, true, 14.0f);
}

TEST_CASE("a thousand ranks are summed like a few") {
  with_each_instruction_set([] {
    Ranks<float> ranks(1024, 131, 0);
    std::vector<float> result(131);
    const std::vector<float> expected = in_rank_order(ranks, result, false, 1024.0f);
    kernels::ranked_sum_cpu(
        {.contributions = ranks.pointers, .result = result.data(), .count = 131, .divisor = 1024.0f});
    CHECK(differences(result, expected) == 0);
  });
}

TEST_CASE("the result may be any rank's contribution") {
  for (std::size_t own : {0u, 1u, 4u}) {
    CAPTURE(own);
    with_each_case([&](std::size_t count, std::size_t shift) {
      Ranks<float> ranks(5, count, shift);
      const std::vector<float> expected = in_rank_order(ranks, ranks.buffers[own].values(), false, 5.0f);
      kernels::ranked_sum_cpu(
          {.contributions = ranks.pointers, .result = ranks.buffers[own].data(), .count = count, .divisor = 5.0f});
      CHECK(differences(ranks.buffers[own].values(), expected) == 0);
      CHECK(ranks.buffers[own].guards_intact());
    });
  }
}

TEST_CASE("one rank's sum over one is its contribution, bit by bit") {
  with_each_case([](std::size_t count, std::size_t shift) {
    Buffer<float> from(numbers_and_patterns(count, 91), shift);
    Buffer<float> result(count, shift);
    const void* const pointers[] = {from.data()};
    kernels::ranked_sum_cpu({.contributions = pointers, .result = result.data(), .count = count});
    CHECK(bit_differences(result.values(), from.values()) == 0);
  });
}

TEST_CASE("a sum over no rank is an error") {
  float result = 0;
  CHECK_THROWS_AS(kernels::ranked_sum_cpu({.contributions = {}, .result = &result, .count = 1}), UsageError);
}
