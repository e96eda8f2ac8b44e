// Attention on CUDA devices against the CPU: forward, gradients, dropout, generation.
#include "attention_case.hpp"
#include "tessera/base/error.hpp"

using namespace tessera;
using namespace tessera::nn;
using namespace tessera::test;

namespace nn_attention_test {

using cuda::attentions::available;
using cuda::attentions::Set;

// Sizes around the tiles of the kernels: below one, one, and several with a rest. Heads in eights and in odd numbers.
const std::vector<AttentionShape> shapes = {
    {0, 3, 2, 4},
    {1, 1, 1, 1},
    {2, 7, 3, 5},
    {1, 33, 2, 16},
    {1, 130, 1, 9},
    {2, 70, 1, 32},
    {1, 200, 1, 64},
    {1, 97, 1, 128},
    {3, 40, 2, 24},
    {.sequence = 197, .head_dim = 64, .causal = false},
    {.sequences = 2, .sequence = 70, .heads = 2, .head_dim = 3, .causal = false},
    {.sequence = 130, .head_dim = 72, .causal = false},
};

TEST_CASE_TEMPLATE("cuda: attention and its gradients are near the CPU's", T, TESSERA_CUDA_ELEMENTS) {
  for (const Set set : available()) {
    for (const AttentionShape& shape : shapes) {
      for (const Dropout& dropout : {Dropout{}, some_dropout}) {
        if (set == Set::own && tests::reduced() && dropout.probability == 0.0f && shape.sequence < 97) continue;
        if (set != Set::own && (dropout.probability != 0.0f || std::is_same_v<T, float>)) continue;
        CAPTURE(to_string(set));
        CAPTURE(shape.sequence);
        CAPTURE(shape.head_dim);
        CAPTURE(shape.causal);
        CAPTURE(dropout.probability);
        const WithAttention now(set);
        compare_attentions(Comparison::with_the_cpu, shape, dropout, attention_inputs<T>(shape));
      }
    }
  }
}

TEST_CASE_TEMPLATE("cuda: attention follows scores that grow from tile to tile", T, TESSERA_CUDA_ELEMENTS) {
  const AttentionShape shape{1, 200, 1, 16};
  std::vector<T> qkv = attention_inputs<T>(shape);
  for (std::size_t row = 0; row < 200; ++row) {
    for (std::size_t i = 0; i < 16; ++i) {
      qkv[row * 48 + i] = T(1.0f);
      qkv[row * 48 + 16 + i] = T(static_cast<float>(row / 50) * 3.5f + static_cast<float>(row % 7) / 8.0f);
    }
  }
  compare_attentions(Comparison::with_the_cpu, shape, {}, qkv);
}

TEST_CASE_TEMPLATE("cuda: keys whose scores are -inf take no part, also where a row knows no others yet", T,
                   TESSERA_CUDA_ELEMENTS) {
  const WithAttention now(Set::own);
  const AttentionShape shape{.sequence = 200, .head_dim = 16, .causal = false};
  std::vector<T> qkv = attention_inputs<T>(shape);
  for (std::size_t row = 0; row < 200; ++row) {
    qkv[row * 48] = T(1.0f);
    if (row < 130) qkv[row * 48 + 16] = T(-std::numeric_limits<float>::infinity());
  }
  compare_attentions(Comparison::with_the_cpu, shape, {}, qkv, {}, AttentionPasses::forward);
}

TEST_CASE_TEMPLATE("cuda: attention has the same bits each time", T, TESSERA_CUDA_ELEMENTS) {
  const AttentionShape shape{1, 70, 1, 32};
  for (const Set set : available()) {
    const WithAttention now(set);
    compare_attentions(Comparison::with_itself, shape, set == Set::own ? some_dropout : Dropout{},
                       attention_inputs<T>(shape));
  }
}

TEST_CASE_TEMPLATE("cuda: the last queries of a sequence are near the CPU's", T, TESSERA_CUDA_ELEMENTS) {
  const AttentionShape shape{2, 45, 2, 16};
  for (const std::size_t queries : {1u, 34u}) {
    CAPTURE(queries);
    compare_with_the_cpu(
        [&](Stream& on, T* qkv, T* out, float* scratch) {
          attention_forward<T>(on, {.shape = shape,
                                    .qkv = MatrixView<T>{qkv, shape.rows(), 3 * shape.dim()},
                                    .out = MatrixView<T>{out, 2 * queries, shape.dim()},
                                    .queries = queries,
                                    .scratch = scratch});
        },
        same(attention_inputs<T>(shape)), near(unset<T>(2 * queries * shape.dim()), rounded_operands<T>),
        Scratch{attention_forward_scratch<T>(shape, DeviceKind::cpu),
                attention_forward_scratch<T>(shape, DeviceKind::cuda)});
  }
}

TEST_CASE("cuda: heads too wide for a block are refused with what fits") {
  Stream stream = cuda_stream();
  const AttentionShape shape{1, 1, 1, 500};
  const MatrixView<const float> qkv{nullptr, 1, 1500};
  const MatrixView<float> out{nullptr, 1, 500};
  CHECK_THROWS_WITH_AS(attention_forward<float>(stream, {.shape = shape, .qkv = qkv, .out = out}),
                       doctest::Contains("heads of 500 are too wide for CUDA devices"), UsageError);
}

}  // namespace nn_attention_test
