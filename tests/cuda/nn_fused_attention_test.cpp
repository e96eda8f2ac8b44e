// Fused attention on the emulated device: what a library is asked for, in how many calls, and when it is not asked.
#include "../emulated_cuda/emulated_attention.hpp"
#include "attention_case.hpp"
#include "tessera/nn/processor.hpp"

using namespace tessera;
using namespace tessera::nn;
using namespace tessera::test;
using nn::cuda::emulated_attention;
using Calls = std::vector<std::pair<std::size_t, std::size_t>>;

namespace nn_fused_attention_test {

// The library as it is by itself, and its calls forgotten.
class Library {
 public:
  Library() { emulated_attention() = {}; }
  ~Library() { emulated_attention() = {}; }
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

 private:
  WithAttention now_{cuda::attentions::Set::cudnn};
};

constexpr AttentionShape shape{5, 130, 3, 72};
constexpr AttentionShape small{2, 9, 3, 72};  // for who is asked, which does not depend on the number of rows

void check_near_the_cpu(const AttentionShape& of, const Dropout& dropout, const Shifts& shifts = {}) {
  compare_attentions(Comparison::with_the_cpu, of, dropout, attention_inputs<bf16>(of), shifts);
}

TEST_CASE("fused attention is called for as many sequences and heads as its scratch memory allows") {
  const Library library;
  check_near_the_cpu(shape, {});
  CHECK(emulated_attention().calls == Calls{{5, 3}, {5, 3}});  // forward, backward

  emulated_attention() = {.bytes_of_head = std::size_t{3} << 20};  // forward has 16 MiB for 15 heads
  check_near_the_cpu(shape, {});
  CHECK(emulated_attention().calls == Calls{{1, 3}, {1, 3}, {1, 3}, {1, 3}, {1, 3}, {2, 3}, {2, 3}, {1, 3}});

  emulated_attention() = {.bytes_of_head = std::size_t{12} << 20};
  check_near_the_cpu(shape, {});
  CHECK(emulated_attention().calls == Calls(30, {1, 1}));
}

TEST_CASE("the backward pass of heads of at most 64 is that of own kernels") {
  const Library library;
  check_near_the_cpu({5, 130, 3, 64}, {});
  CHECK(emulated_attention().calls == Calls{{5, 3}});  // forward
}

TEST_CASE("where the library has no kernel, or no room for one, own kernels compute") {
  const Library library;
  emulated_attention() = {.has_kernels = false};
  check_near_the_cpu(small, {});
  emulated_attention().has_kernels = true;
  emulated_attention().bytes_of_head = std::size_t{1} << 30;
  check_near_the_cpu(small, {});
  CHECK(emulated_attention().calls.empty());
}

TEST_CASE("fused attention is asked for no tensor that does not begin on 16 bytes") {
  const Library library;
  const auto check = [&](const Shifts& shifts, const Calls& calls) {
    emulated_attention() = {};
    check_near_the_cpu(small, {}, shifts);
    CHECK(emulated_attention().calls == calls);
  };
  check({.qkv = 8, .out = 8, .dout = 8, .dqkv = 8}, {{2, 3}, {2, 3}});
  check({.qkv = 4}, {});
  check({.out = 1}, {});
  check({.dout = 4}, {{2, 3}});  // forward
  check({.dqkv = 1}, {{2, 3}});
}

TEST_CASE("what a library computes in another way is not asked of it") {
  const Library library;
  check_near_the_cpu(small, some_dropout);
  check_near_the_cpu({2, 7, 3, 5}, {});
  check_near_the_cpu({2, 1, 3, 16}, {});
  compare_attentions(Comparison::with_the_cpu, small, {}, attention_inputs<float>(small));
  CHECK(emulated_attention().calls.empty());
}

TEST_CASE("scratch memory of fused attention is bounded, and enough for own kernels") {
  const Library library;
  const auto bytes = [](const AttentionShape& of) {
    return attention_backward_scratch<bf16>(of, DeviceKind::cuda) * sizeof(float);
  };
  const std::size_t gpt = bytes({32, 1024, 12, 128});
  CHECK(gpt > std::size_t{200} << 20);
  CHECK(gpt <= std::size_t{272} << 20);
  CHECK(bytes({1, 16384, 2, 128}) == (std::size_t{16384} * 16384 * 2 + 16384 * 129 * 4) + (std::size_t{16} << 20));
  CHECK(bytes({1 << 20, 64, 16, 72}) == (std::size_t{1} << 30) * 4);
  CHECK(bytes({32, 1024, 12, 64}) == 32 * 1024 * 12 * sizeof(float));
  CHECK(attention_backward_scratch<float>({32, 1024, 12, 64}, DeviceKind::cuda) == 32 * 1024 * 12);
}

TEST_CASE("what computes attention is said") {
  const Library library;
  CHECK(
      computed_with_on_cuda() ==
      "products by OpenBLAS; attention of bf16 and fp16 by the tests' attention where nothing is dropped, all else by "
      "own kernels");
  const WithAttention own(cuda::attentions::Set::own);
  CHECK(computed_with_on_cuda() == "products by OpenBLAS; attention by own kernels");
}

}  // namespace nn_fused_attention_test
