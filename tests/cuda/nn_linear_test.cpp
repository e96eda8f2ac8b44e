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

enum class After { nothing, gelu, residual };  // of the forward product

struct LinearOptions {
  bool with_bias = true;
  After after = After::nothing;
  bool accumulate = false;
};

template <typename T>
void compare_linears(Comparison comparison, const Extents& e, const LinearOptions& options) {
  const std::size_t in = e.batch * e.in, out = e.batch * e.out;
  const auto layer = [&](Stream& on, T* x, T* weight, T* bias, T* residual, T* dy, T* before, T* y, T* gelu, T* dx,
                         T* dweight, T* dbias, float* scratch) {
    const auto of_in = [&](T* data) { return MatrixView<T>{data, e.batch, e.in}; };
    const auto of_out = [&](T* data) { return MatrixView<T>{data, e.batch, e.out}; };
    LinearForward<T> forward{.x = of_in(x),
                             .weight = MatrixView<T>{weight, e.out, e.in},
                             .bias = options.with_bias ? bias : nullptr,
                             .y = of_out(y),
                             .scratch = scratch};
    LinearBackward<T> backward{.x = of_in(x),
                               .weight = MatrixView<T>{weight, e.out, e.in},
                               .dy = of_out(dy),
                               .dx = of_in(dx),
                               .dweight = dweight,
                               .dbias = dbias,
                               .accumulate = options.accumulate,
                               .scratch = scratch};
    if (options.after == After::residual) forward.residual = of_out(residual);
    if (options.after == After::gelu) {
      forward.gelu = of_out(gelu);
      backward.gelu_x = of_in(before);
    }
    linear_forward(on, forward);
    linear_backward(on, backward);
  };
  // The CPU rounds once more before it adds a residual. On Hopper cuBLASLt rounds a product of 16 bits once before it
  // adds it to what is there.
  const double few = 2e-6, rounded_once_more = 2.0 * rounding<T> + few, of_rows = e.batch > 1000 ? 1e-5 : few;
  compare(
      comparison, layer, same(random_elements<T>(in, 1)), same(random_elements<T>(e.out * e.in, 2)),
      same(random_elements<T>(e.out, 3)), same(random_elements<T>(out, 6)), same(random_elements<T>(out, 4)),
      same(random_elements<T>(in, 5)),
      e.in == 0 ? same(unset<T>(out)) : near(unset<T>(out), options.after == After::residual ? rounded_once_more : few),
      near(unset<T>(out), 2.0 * rounding<T> + gelu_of_epilogue),
      near(unset<T>(in), options.after == After::gelu ? gelu_of_epilogue : few),
      near(std::vector<T>(e.out * e.in, T(0.5f)), options.accumulate ? std::max(rounded_once_more, of_rows) : of_rows),
      near(std::vector<T>(e.out, T(0.25f)), of_rows),
      Scratch{linear_scratch<T>(e.batch, e.in, e.out, DeviceKind::cpu),
              linear_scratch<T>(e.batch, e.in, e.out, DeviceKind::cuda)});
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
          compare_linears<T>(Comparison::with_the_cpu, extents, {with_bias, after, accumulate});
        }
      }
    }
  }
}

TEST_CASE("cuda: without inputs a linear layer gives its bias, and without outputs a gradient of zeros") {
  compare_linears<float>(Comparison::with_the_cpu, {3, 0, 5}, {});
  compare_linears<float>(Comparison::with_the_cpu, {3, 5, 0}, {});
}

TEST_CASE_TEMPLATE("cuda: bias gradients of many rows have the same bits each time", T, TESSERA_CUDA_ELEMENTS) {
  for (const Comparison comparison : {Comparison::with_itself, Comparison::with_the_cpu}) {
    compare_linears<T>(comparison, {1500, 2, 66}, {.accumulate = true});
  }
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
