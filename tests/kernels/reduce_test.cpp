// Sums over ranks against the rank order, written out.
#include "tessera/kernels/reduce.hpp"

#include "cases.hpp"
#include "tessera/base/error.hpp"

using namespace tessera;
using namespace tessera::test;
using kernels::Accumulate;

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
std::vector<float> in_rank_order(Ranks<T>& ranks, const std::vector<float>& result, Accumulate accumulate,
                                 float divisor) {
  std::vector<float> sums(result.size());
  for (std::size_t i = 0; i < sums.size(); ++i) {
    float sum = static_cast<float>(ranks.buffers[0].data()[i]);
    if (accumulate == Accumulate::terms) sum = result[i] + sum;
    for (std::size_t rank = 1; rank < ranks.buffers.size(); ++rank)
      sum += static_cast<float>(ranks.buffers[rank].data()[i]);
    if (accumulate == Accumulate::sum) sum = result[i] + sum;
    sums[i] = divisor == 1.0f ? sum : sum / divisor;
  }
  return sums;
}

template <typename T>
void check_sums(std::size_t rank_count, Accumulate accumulate, float divisor) {
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
  for (std::size_t ranks : {1u, 2u, 3u, 5u, 7u, 8u}) check_sums<T>(ranks, Accumulate::no, 1.0f);
  check_sums<T>(3, Accumulate::sum, 1.0f);
  check_sums<T>(3, Accumulate::no, 3.0f);
  check_sums<T>(7, Accumulate::sum, 14.0f);
}

TEST_CASE_TEMPLATE("a sum that goes on term by term has the bits of one rank with all terms", T, float, bf16, fp16) {
  for (std::size_t ranks : {1u, 2u, 3u, 5u, 8u}) check_sums<T>(ranks, Accumulate::terms, 1.0f);
  check_sums<T>(7, Accumulate::terms, 14.0f);
}

// Six granules: two rounds of three ranks, three of two, and one rank that has them all.
TEST_CASE("rounds of any number of ranks go on with the sum to the same bits") {
  with_each_case([](std::size_t count, std::size_t shift) {
    Ranks<bf16> granules(6, count, shift);
    const std::vector<float> one_by_one = in_rank_order(granules, std::vector<float>(count), Accumulate::no, 1.0f);
    for (const std::size_t ranks : {1u, 2u, 3u, 6u}) {
      Buffer<float> sum(count, shift);
      for (std::size_t first = 0; first < 6; first += ranks) {
        kernels::ranked_sum_cpu({.contributions = std::span(granules.pointers).subspan(first, ranks),
                                 .type = DType::bf16,
                                 .result = sum.data(),
                                 .count = count,
                                 .accumulate = first == 0 ? Accumulate::no : Accumulate::terms});
      }
      CHECK(differences(sum.values(), one_by_one) == 0);
    }
  });
}

TEST_CASE_TEMPLATE("contributions of -0 leave a sum as it is, -0 itself too", T, float, bf16, fp16) {
  with_each_case([](std::size_t count, std::size_t shift) {
    std::vector<float> before = numbers(count, 17);
    for (std::size_t i = 0; i < count; i += 3) before[i] = i % 2 == 0 ? -0.0f : 0.0f;
    Buffer<T> nothing(std::vector<T>(count, T(-0.0f)), shift);
    const std::vector<const void*> ranks(3, nothing.data());
    for (const Accumulate accumulate : {Accumulate::sum, Accumulate::terms}) {
      Buffer<float> result(before, shift);
      kernels::ranked_sum_cpu({.contributions = ranks,
                               .type = dtype_of<T>,
                               .result = result.data(),
                               .count = count,
                               .accumulate = accumulate});
      CHECK(bit_differences(result.values(), before) == 0);
    }
  });
}

TEST_CASE("a thousand ranks are summed like a few") {
  with_each_instruction_set([] {
    Ranks<float> ranks(1024, 131, 0);
    std::vector<float> result(131);
    const std::vector<float> expected = in_rank_order(ranks, result, Accumulate::no, 1024.0f);
    kernels::ranked_sum_cpu(
        {.contributions = ranks.pointers, .result = result.data(), .count = 131, .divisor = 1024.0f});
    CHECK(differences(result, expected) == 0);
  });
}

TEST_CASE("the result may be any rank's contribution") {
  const auto check = [](std::size_t own, Accumulate accumulate) {
    CAPTURE(own);
    with_each_case([&](std::size_t count, std::size_t shift) {
      Ranks<float> ranks(5, count, shift);
      const std::vector<float> expected = in_rank_order(ranks, ranks.buffers[own].values(), accumulate, 5.0f);
      kernels::ranked_sum_cpu({.contributions = ranks.pointers,
                               .result = ranks.buffers[own].data(),
                               .count = count,
                               .accumulate = accumulate,
                               .divisor = 5.0f});
      CHECK(differences(ranks.buffers[own].values(), expected) == 0);
      CHECK(ranks.buffers[own].guards_intact());
    });
  };
  for (std::size_t own : {0u, 1u, 4u}) {
    for (const Accumulate accumulate : {Accumulate::no, Accumulate::sum, Accumulate::terms}) check(own, accumulate);
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
