// Attention on CUDA devices against the CPU: forward, gradients, dropout, generation.
#include "nn_device.hpp"
#include "tessera/base/error.hpp"
#include "tessera/nn/attention.hpp"

using namespace tessera;
using namespace tessera::nn;
using namespace tessera::test;

namespace nn_attention_test {

// Sizes around the tiles of the kernels: below one, one, and several with a rest. Heads in eights and in odd numbers.
const std::vector<AttentionShape> shapes = {
    {0, 3, 2, 4},   {1, 1, 1, 1},   {2, 7, 3, 5},    {1, 33, 2, 16},
    {1, 130, 1, 9}, {2, 70, 1, 32}, {1, 200, 1, 64}, {1, 97, 1, 128},
};
const Dropout some_dropout{.probability = 0.25f, .key = {.seed = 3, .step = 2, .layer = 1, .first_row = 1000}};

template <typename T>
struct Case {
  Case(const AttentionShape& of, const Dropout& dropout_)
      : shape(of),
        dropout(dropout_),
        qkv(random_elements<T>(of.rows() * 3 * of.dim(), 1)),
        dout(random_elements<T>(of.rows() * of.dim(), 2)),
        out(dout.size()),
        dqkv(qkv.size()),
        statistics(of.statistics()) {
    for (T& element : qkv) element = T(2.0f * static_cast<float>(element));
  }

  AttentionShape shape;
  Dropout dropout;
  std::vector<T> qkv, dout, out, dqkv;
  std::vector<float> statistics;
};

template <typename T>
void run_on_cpu(Case<T>& c) {
  Stream host = host_stream();
  const AttentionShape& s = c.shape;
  std::vector<float> scratch(std::max(attention_forward_scratch<T>(s), attention_backward_scratch<T>(s)));
  attention_forward<T>(host, {.shape = s,
                              .qkv = matrix(c.qkv, s.rows(), 3 * s.dim()),
                              .out = matrix(c.out, s.rows(), s.dim()),
                              .statistics = c.statistics.data(),
                              .dropout = c.dropout,
                              .scratch = scratch.data()});
  attention_backward<T>(host, {.shape = s,
                               .qkv = matrix(c.qkv, s.rows(), 3 * s.dim()),
                               .statistics = c.statistics.data(),
                               .dout = matrix(c.dout, s.rows(), s.dim()),
                               .dqkv = matrix(c.dqkv, s.rows(), 3 * s.dim()),
                               .dropout = c.dropout,
                               .scratch = scratch.data()});
  host.synchronize();
}

template <typename T>
void run_on_cuda(Case<T>& c) {
  Stream stream = cuda_stream();
  const AttentionShape& s = c.shape;
  DeviceMatrix<T> qkv(c.qkv, s.rows(), 3 * s.dim()), dqkv(s.rows(), 3 * s.dim());
  DeviceMatrix<T> out(s.rows(), s.dim()), dout(c.dout, s.rows(), s.dim());
  DeviceMatrix<float> statistics(1, s.statistics());
  CHECK(attention_forward_scratch<T>(s, DeviceKind::cuda) == 0);
  DeviceBuffer<float> scratch(attention_backward_scratch<T>(s, DeviceKind::cuda));
  attention_forward<T>(
      stream,
      {.shape = s, .qkv = qkv.view(), .out = out.view(), .statistics = statistics.data(), .dropout = c.dropout});
  attention_backward<T>(stream, {.shape = s,
                                 .qkv = qkv.view(),
                                 .statistics = statistics.data(),
                                 .out = out.view(),
                                 .dout = dout.view(),
                                 .dqkv = dqkv.view(),
                                 .dropout = c.dropout,
                                 .scratch = scratch.data()});
  stream.synchronize();
  CHECK(scratch.guards_intact());
  c.out = out.values(), c.dqkv = dqkv.values(), c.statistics = statistics.values();
}

// Probabilities and their gradients may be rounded to T before they are multiplied, and backward reads a rounded `out`.
template <typename T>
constexpr double rounded_operands = std::is_same_v<T, float> ? 1e-5 : 4.0 * rounding<T>;

TEST_CASE_TEMPLATE("cuda: attention and its gradients are near the CPU's", T, TESSERA_CUDA_ELEMENTS) {
  for (const AttentionShape& shape : shapes) {
    for (const Dropout& dropout : {Dropout{}, some_dropout}) {
      if (reduced_matrix() && dropout.probability == 0.0f) continue;
      CAPTURE(shape.sequence);
      CAPTURE(shape.head_dim);
      CAPTURE(dropout.probability);
      Case<T> expected(shape, dropout), computed(shape, dropout);
      run_on_cpu(expected);
      run_on_cuda(computed);
      check_near(computed.out, expected.out, rounded_operands<T>);
      check_near(computed.statistics, expected.statistics, 1e-5);
      check_near(computed.dqkv, expected.dqkv, rounded_operands<T>);
    }
  }
}

TEST_CASE_TEMPLATE("cuda: attention follows scores that grow from tile to tile", T, TESSERA_CUDA_ELEMENTS) {
  const AttentionShape shape{1, 200, 1, 16};
  Case<T> expected(shape, Dropout{}), computed(shape, Dropout{});
  for (Case<T>* c : {&expected, &computed}) {
    for (std::size_t row = 0; row < 200; ++row) {
      for (std::size_t i = 0; i < 16; ++i) {
        c->qkv[row * 48 + i] = T(1.0f);
        c->qkv[row * 48 + 16 + i] = T(static_cast<float>(row / 50) * 3.5f + static_cast<float>(row % 7) / 8.0f);
      }
    }
  }
  run_on_cpu(expected);
  run_on_cuda(computed);
  check_near(computed.out, expected.out, rounded_operands<T>);
  check_near(computed.statistics, expected.statistics, 1e-5);
  check_near(computed.dqkv, expected.dqkv, rounded_operands<T>);
}

TEST_CASE_TEMPLATE("cuda: attention has the same bits each time", T, TESSERA_CUDA_ELEMENTS) {
  Case<T> first({1, 70, 1, 32}, some_dropout), second({1, 70, 1, 32}, some_dropout);
  run_on_cuda(first);
  run_on_cuda(second);
  check_same(first.out, second.out);
  check_same(first.dqkv, second.dqkv);
}

TEST_CASE_TEMPLATE("cuda: the last queries of a sequence are the last rows of all of them", T, TESSERA_CUDA_ELEMENTS) {
  const AttentionShape shape{2, 45, 2, 16};
  Case<T> all(shape, Dropout{});
  run_on_cpu(all);
  for (const std::size_t queries : {1u, 34u}) {
    CAPTURE(queries);
    Stream stream = cuda_stream();
    DeviceMatrix<T> qkv(all.qkv, shape.rows(), 3 * shape.dim()), out(2 * queries, shape.dim());
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
