// Layers that work element by element, on CUDA devices against the CPU.
#include "nn_device.hpp"
#include "tessera/base/error.hpp"
#include "tessera/nn/dropout.hpp"
#include "tessera/nn/gelu.hpp"
#include "tessera/nn/relu.hpp"

using namespace tessera;
using namespace tessera::nn;
using namespace tessera::test;

namespace nn_elements_test {

// Rows, columns and how many elements behind an aligned address the matrices begin.
struct Form {
  std::size_t rows;
  std::size_t columns;
  std::size_t shift;
};
const std::vector<Form> forms = {{0, 5, 0}, {1, 1, 0}, {3, 7, 0}, {2, 64, 0}, {5, 130, 1}, {1, 1031, 0}, {17, 48, 0}};

template <typename T>
std::vector<T> inputs(const Form& form, unsigned seed) {
  std::vector<T> values = random_elements<T>(form.rows * form.columns, seed);
  for (T& value : values) value = T(8.0f * static_cast<float>(value));
  return values;
}

// A layer makes these of its inputs: its result, and its gradient or a second result.
template <typename T>
struct Results {
  std::vector<T> first, second;
};

template <typename T>
Results<T> gelu(DeviceKind kind, const Form& form) {
  Stream stream = stream_on(kind);
  DeviceMatrix<T> x(kind, inputs<T>(form, 1), form.rows, form.columns, form.shift);
  DeviceMatrix<T> dy(kind, inputs<T>(form, 2), form.rows, form.columns, form.shift);
  DeviceMatrix<T> y(kind, form.rows, form.columns, form.shift);
  gelu_forward<T>(stream, x.view(), y.view());
  gelu_backward<T>(stream, x.view(), dy.view(), dy.view());
  stream.synchronize();
  return {y.values(), dy.values()};
}

TEST_CASE_TEMPLATE("cuda: gelu and its gradient are near the CPU's", T, TESSERA_CUDA_ELEMENTS) {
  for (const Form& form : forms) {
    CAPTURE(form.columns);
    const Results<T> computed = gelu<T>(DeviceKind::cuda, form), expected = gelu<T>(DeviceKind::cpu, form);
    check_near(computed.first, expected.first);
    check_near(computed.second, expected.second);
  }
}

template <typename T>
Results<T> relu(DeviceKind kind, const Form& form) {
  Stream stream = stream_on(kind);
  std::vector<T> values = inputs<T>(form, 1);
  if (!values.empty()) values[0] = T(std::numeric_limits<float>::quiet_NaN()), values.back() = T(-0.0f);
  DeviceMatrix<T> x(kind, values, form.rows, form.columns, form.shift);
  DeviceMatrix<T> dy(kind, inputs<T>(form, 2), form.rows, form.columns, form.shift);
  DeviceMatrix<T> dx(kind, form.rows, form.columns, form.shift);
  relu_forward<T>(stream, x.view(), x.view());
  relu_backward<T>(stream, x.view(), dy.view(), dx.view());
  stream.synchronize();
  return {x.values(), dx.values()};
}

TEST_CASE_TEMPLATE("cuda: relu and its gradient have the CPU's bits", T, TESSERA_CUDA_ELEMENTS) {
  for (const Form& form : forms) {
    CAPTURE(form.columns);
    const Results<T> computed = relu<T>(DeviceKind::cuda, form), expected = relu<T>(DeviceKind::cpu, form);
    check_same(computed.first, expected.first);
    check_same(computed.second, expected.second);
  }
}

template <typename T>
Results<T> dropped(DeviceKind kind, const Form& form, const Dropout& drop) {
  Stream stream = stream_on(kind);
  DeviceMatrix<T> x(kind, inputs<T>(form, 1), form.rows, form.columns, form.shift);
  DeviceMatrix<T> residual(kind, inputs<T>(form, 2), form.rows, form.columns, form.shift);
  DeviceMatrix<T> y(kind, form.rows, form.columns, form.shift);
  dropout<T>(stream, drop, x.view(), y.view());
  add_dropped<T>(stream, {.residual = residual.view(), .x = x.view(), .y = residual.view(), .dropout = drop});
  stream.synchronize();
  return {y.values(), residual.values()};
}

TEST_CASE_TEMPLATE("cuda: dropout has the CPU's masks and bits, with and without a residual", T,
                   TESSERA_CUDA_ELEMENTS) {
  for (const Form& form : forms) {
    for (const float probability : {0.0f, 0.3f}) {
      CAPTURE(form.columns);
      CAPTURE(probability);
      const Dropout drop{.probability = probability,
                         .key = {.seed = 7, .step = 3, .layer = 2, .first_row = (std::uint64_t{1} << 33) + 5}};
      const Results<T> computed = dropped<T>(DeviceKind::cuda, form, drop);
      const Results<T> expected = dropped<T>(DeviceKind::cpu, form, drop);
      check_same(computed.first, expected.first);
      check_same(computed.second, expected.second);
    }
  }
}

TEST_CASE("cuda: elements of double are refused with the layer's name") {
  Stream stream = cuda_stream();
  std::vector<double> x(3);
  CHECK_THROWS_WITH_AS(gelu_forward<double>(stream, matrix(x, 1, 3), matrix(x, 1, 3)),
                       "gelu: elements of type double are for the CPU alone; use float, bf16 or fp16 on cuda:0",
                       UnavailableError);
}

}  // namespace nn_elements_test
