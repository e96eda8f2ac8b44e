// The linear layer on CUDA devices against the CPU: products, epilogues, gradients.
#include <algorithm>

#include "../nn/memory_windows.hpp"
#include "nn_device.hpp"
#include "src/cuda/product.hpp"
#include "tessera/base/error.hpp"
#include "tessera/nn/feed_forward.hpp"
#include "tessera/nn/linear.hpp"

using namespace tessera;
using namespace tessera::nn;
using namespace tessera::test;

namespace nn_linear_test {

// Extents of eight take the epilogues, others take kernels of their own.
struct Extents {
  std::size_t batch;
  std::size_t in;
  std::size_t out;
};
const std::vector<Extents> all_extents = {{0, 5, 3}, {1, 1, 1}, {7, 5, 3}, {64, 16, 24}, {130, 17, 70}, {9, 40, 32}};

template <typename T>
struct Case {
  explicit Case(const Extents& of, bool with_bias)
      : e(of),
        x(random_elements<T>(e.batch * e.in, 1)),
        weight(random_elements<T>(e.out * e.in, 2)),
        bias(random_elements<T>(with_bias ? e.out : 0, 3)),
        residual(random_elements<T>(e.batch * e.out, 6)),
        dy(random_elements<T>(e.batch * e.out, 4)),
        before(random_elements<T>(e.batch * e.in, 5)),
        y(e.batch * e.out),
        gelu(e.batch * e.out),
        dx(e.batch * e.in),
        dweight(e.out * e.in, T(0.5f)),
        dbias(e.out, T(0.25f)) {}

  Extents e;
  std::vector<T> x, weight, bias, residual, dy, before, y, gelu, dx, dweight, dbias;
};

enum class After { nothing, gelu, residual };  // of the forward product

template <typename T>
void run(DeviceKind kind, Case<T>& c, After after, bool accumulate) {
  Stream stream = stream_on(kind);
  DeviceMatrix<T> x(kind, c.x, c.e.batch, c.e.in), weight(kind, c.weight, c.e.out, c.e.in),
      bias(kind, c.bias, 1, c.bias.size());
  DeviceMatrix<T> dy(kind, c.dy, c.e.batch, c.e.out), before(kind, c.before, c.e.batch, c.e.in);
  DeviceMatrix<T> residual(kind, c.residual, c.e.batch, c.e.out);
  DeviceMatrix<T> y(kind, c.e.batch, c.e.out), bent(kind, c.e.batch, c.e.out), dx(kind, c.e.batch, c.e.in);
  DeviceMatrix<T> dweight(kind, c.dweight, c.e.out, c.e.in), dbias(kind, c.dbias, 1, c.e.out);
  DeviceBuffer<float> scratch(kind, linear_scratch<T>(c.e.batch, c.e.in, c.e.out, kind));
  LinearForward<T> forward{.x = x.view(),
                           .weight = weight.view(),
                           .bias = c.bias.empty() ? nullptr : bias.data(),
                           .y = y.view(),
                           .scratch = scratch.data()};
  LinearBackward<T> backward{.x = x.view(),
                             .weight = weight.view(),
                             .dy = dy.view(),
                             .dx = dx.view(),
                             .dweight = dweight.data(),
                             .dbias = dbias.data(),
                             .accumulate = accumulate,
                             .scratch = scratch.data()};
  if (after == After::residual) forward.residual = residual.view();
  if (after == After::gelu) {
    forward.gelu = bent.view();
    backward.gelu_x = before.view();
  }
  linear_forward(stream, forward);
  linear_backward(stream, backward);
  stream.synchronize();
  CHECK(scratch.guards_intact());
  c.y = y.values(), c.dx = dx.values(), c.dweight = dweight.values(), c.dbias = dbias.values();
  if (after == After::gelu) c.gelu = bent.values();
}

TEST_CASE_TEMPLATE("cuda: a linear layer is near the CPU's, with every epilogue", T, TESSERA_CUDA_ELEMENTS) {
  for (const Extents& extents : all_extents) {
    for (const bool with_bias : {true, false}) {
      for (const After after : {After::nothing, After::gelu, After::residual}) {
        for (const bool accumulate : {false, true}) {
          CAPTURE(extents.batch);
          CAPTURE(extents.out);
          CAPTURE(with_bias);
          CAPTURE(accumulate);
          Case<T> expected(extents, with_bias), computed(extents, with_bias);
          run(DeviceKind::cpu, expected, after, accumulate);
          run(DeviceKind::cuda, computed, after, accumulate);
          // The CPU rounds once more before it adds a residual.
          check_near(computed.y, expected.y, after == After::residual ? 2.0 * rounding<T> + 2e-6 : 2e-6);
          check_near(computed.dx, expected.dx, after == After::gelu ? gelu_of_epilogue : 2e-6);
          // On Hopper cuBLASLt rounds a product of 16 bits once before it adds it to what is there.
          check_near(computed.dweight, expected.dweight, accumulate ? 2.0 * rounding<T> + 2e-6 : 2e-6);
          check_near(computed.dbias, expected.dbias);
          if (after == After::gelu) check_near(computed.gelu, expected.gelu, 2.0 * rounding<T> + gelu_of_epilogue);
        }
      }
    }
  }
}

TEST_CASE("cuda: without inputs a linear layer gives its bias, and without outputs a gradient of zeros") {
  Case<float> no_inputs({3, 0, 5}, true);
  Case<float> expected = no_inputs;
  run(DeviceKind::cpu, expected, After::nothing, false);
  run(DeviceKind::cuda, no_inputs, After::nothing, false);
  check_same(no_inputs.y, expected.y);
  check_near(no_inputs.dbias, expected.dbias);
  Case<float> no_outputs({3, 5, 0}, true);
  run(DeviceKind::cuda, no_outputs, After::nothing, false);
  check_same(no_outputs.dx, std::vector<float>(15, 0.0f));
}

TEST_CASE_TEMPLATE("cuda: bias gradients of many rows have the same bits each time", T, TESSERA_CUDA_ELEMENTS) {
  const Extents extents{1500, 2, 66};
  Case<T> first(extents, true), second(extents, true), expected(extents, true);
  run(DeviceKind::cpu, expected, After::nothing, true);
  run(DeviceKind::cuda, first, After::nothing, true);
  run(DeviceKind::cuda, second, After::nothing, true);
  check_same(first.dbias, second.dbias);
  check_near(first.dbias, expected.dbias, 1e-5);
}

TEST_CASE("a row-major product is asked for as its transpose in columns") {
  // c [5, 7] = a [5, 3] b [3, 7], with b standing as its transpose and rows of c eleven elements apart
  const cuda::Product product = cuda::column_major({.format = Format::fp32,
                                                    .a = {nullptr},
                                                    .b = {nullptr, true},
                                                    .c = {nullptr, false, 11},
                                                    .m = 5,
                                                    .n = 7,
                                                    .k = 3});
  CHECK((product.d.rows == 7 && product.d.columns == 5 && product.d.leading == 11));
  CHECK((product.a.rows == 3 && product.a.columns == 7 && product.a.leading == 3 && product.a.transposed));
  CHECK((product.b.rows == 3 && product.b.columns == 5 && product.b.leading == 3 && !product.b.transposed));
}

TEST_CASE("products are told on how many bytes their operands begin, up to 256") {
  alignas(1024) static std::byte memory[1024];
  for (const std::size_t offset : {2u, 4u, 16u, 48u, 64u, 128u, 192u, 256u, 512u, 768u}) {
    const std::size_t largest = std::min<std::size_t>(256, offset & (~offset + 1));
    CHECK(cuda::alignment_of(memory + offset) == largest);
  }
  CHECK(cuda::alignment_of(memory) == 256);
}

TEST_CASE("cuda: a stack of another kind of device is refused, naming the stream's") {
  class Nothing final : public MemoryWindows {
   public:
    Stream& stream() override { return stream_; }

   private:
    Stream stream_ = cuda_stream();
  } memory;
  Linear<float> linear(2, 3);
  ActivationStack of_the_cpu;
  CHECK_THROWS_WITH_AS(
      memory.forward(linear, of_the_cpu, MatrixView<const float>{nullptr, 1, 2}, MatrixView<float>{nullptr, 1, 3}),
      doctest::Contains("of another kind of device than that of the stream, cuda:0"), UsageError);
}

}  // namespace nn_linear_test
