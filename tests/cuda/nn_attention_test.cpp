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
        AttentionCase<T> expected(shape, dropout), computed(shape, dropout);
        run(DeviceKind::cpu, expected);
        run(DeviceKind::cuda, computed);
        check_near(computed.out, expected.out, rounded_operands<T>);
        check_near(computed.statistics, expected.statistics, 1e-5);
        check_near(computed.dqkv, expected.dqkv, rounded_operands<T>);
      }
    }
  }
}

TEST_CASE_TEMPLATE("cuda: attention follows scores that grow from tile to tile", T, TESSERA_CUDA_ELEMENTS) {
  const AttentionShape shape{1, 200, 1, 16};
  AttentionCase<T> expected(shape, Dropout{}), computed(shape, Dropout{});
  for (AttentionCase<T>* c : {&expected, &computed}) {
    for (std::size_t row = 0; row < 200; ++row) {
      for (std::size_t i = 0; i < 16; ++i) {
        c->qkv[row * 48 + i] = T(1.0f);
        c->qkv[row * 48 + 16 + i] = T(static_cast<float>(row / 50) * 3.5f + static_cast<float>(row % 7) / 8.0f);
      }
    }
  }
  run(DeviceKind::cpu, expected);
  run(DeviceKind::cuda, computed);
  check_near(computed.out, expected.out, rounded_operands<T>);
  check_near(computed.statistics, expected.statistics, 1e-5);
  check_near(computed.dqkv, expected.dqkv, rounded_operands<T>);
}

TEST_CASE_TEMPLATE("cuda: keys whose scores are -inf take no part, also where a row knows no others yet", T,
                   TESSERA_CUDA_ELEMENTS) {
  const WithAttention now(Set::own);
  const AttentionShape shape{.sequence = 200, .head_dim = 16, .causal = false};
  AttentionCase<T> expected(shape, Dropout{}), computed(shape, Dropout{});
  for (AttentionCase<T>* c : {&expected, &computed}) {
    for (std::size_t row = 0; row < 200; ++row) {
      c->qkv[row * 48] = T(1.0f);
      if (row < 130) c->qkv[row * 48 + 16] = T(-std::numeric_limits<float>::infinity());
    }
  }
  run(DeviceKind::cpu, expected);
  run(DeviceKind::cuda, computed);
  for (const double value : widened(expected.out)) REQUIRE(std::isfinite(value));
  check_near(computed.out, expected.out, rounded_operands<T>);
  check_near(computed.statistics, expected.statistics, 1e-5);
}

TEST_CASE_TEMPLATE("cuda: attention has the same bits each time", T, TESSERA_CUDA_ELEMENTS) {
  for (const Set set : available()) {
    const WithAttention now(set);
    const Dropout dropout = set == Set::own ? some_dropout : Dropout{};
    AttentionCase<T> first({1, 70, 1, 32}, dropout), second({1, 70, 1, 32}, dropout);
    run(DeviceKind::cuda, first);
    run(DeviceKind::cuda, second);
    check_same(first.out, second.out);
    check_same(first.dqkv, second.dqkv);
  }
}

TEST_CASE_TEMPLATE("cuda: the last queries of a sequence are the last rows of all of them", T, TESSERA_CUDA_ELEMENTS) {
  const AttentionShape shape{2, 45, 2, 16};
  AttentionCase<T> all(shape, Dropout{});
  run(DeviceKind::cpu, all);
  for (const std::size_t queries : {1u, 34u}) {
    CAPTURE(queries);
    Stream stream = cuda_stream();
    DeviceMatrix<T> qkv(DeviceKind::cuda, all.qkv, shape.rows(), 3 * shape.dim());
    DeviceMatrix<T> out(DeviceKind::cuda, 2 * queries, shape.dim());
    attention_forward<T>(stream, {.shape = shape, .qkv = qkv.view(), .out = out.view(), .queries = queries});
    stream.synchronize();
    std::vector<T> expected;
    for (std::size_t sequence = 0; sequence < 2; ++sequence) {
      const auto end = all.out.begin() + static_cast<std::ptrdiff_t>((sequence + 1) * 45 * shape.dim());
      expected.insert(expected.end(), end - static_cast<std::ptrdiff_t>(queries * shape.dim()), end);
    }
    check_near(out.values(), expected, rounded_operands<T>);
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
