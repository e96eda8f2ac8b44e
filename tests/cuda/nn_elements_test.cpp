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

TEST_CASE_TEMPLATE("cuda: gelu and its gradient are near the CPU's", T, TESSERA_CUDA_ELEMENTS) {
  Stream host = host_stream();
  Stream stream = cuda_stream();
  for (const Form& form : forms) {
    CAPTURE(form.columns);
    std::vector<T> x = inputs<T>(form, 1), dy = inputs<T>(form, 2), y(x.size()), dx(x.size());
    gelu_forward<T>(host, matrix(x, form.rows, form.columns), matrix(y, form.rows, form.columns));
    gelu_backward<T>(host, matrix(x, form.rows, form.columns), matrix(dy, form.rows, form.columns),
                     matrix(dx, form.rows, form.columns));
    DeviceMatrix<T> device_x(x, form.rows, form.columns, form.shift),
        device_dy(dy, form.rows, form.columns, form.shift);
    DeviceMatrix<T> device_y(form.rows, form.columns, form.shift);
    gelu_forward<T>(stream, device_x.view(), device_y.view());
    gelu_backward<T>(stream, device_x.view(), device_dy.view(), device_dy.view());
    stream.synchronize();
    check_near(device_y.values(), y);
    check_near(device_dy.values(), dx);
  }
}

TEST_CASE_TEMPLATE("cuda: relu and its gradient have the CPU's bits", T, TESSERA_CUDA_ELEMENTS) {
  Stream host = host_stream();
  Stream stream = cuda_stream();
  for (const Form& form : forms) {
    CAPTURE(form.columns);
    std::vector<T> x = inputs<T>(form, 1), dy = inputs<T>(form, 2), y(x.size()), dx(x.size());
    if (!x.empty()) x[0] = T(std::numeric_limits<float>::quiet_NaN()), x.back() = T(-0.0f);
    relu_forward<T>(host, matrix(x, form.rows, form.columns), matrix(y, form.rows, form.columns));
    relu_backward<T>(host, matrix(y, form.rows, form.columns), matrix(dy, form.rows, form.columns),
                     matrix(dx, form.rows, form.columns));
    DeviceMatrix<T> device_x(x, form.rows, form.columns, form.shift),
        device_dy(dy, form.rows, form.columns, form.shift);
    DeviceMatrix<T> device_dx(form.rows, form.columns, form.shift);
    relu_forward<T>(stream, device_x.view(), device_x.view());
    relu_backward<T>(stream, device_x.view(), device_dy.view(), device_dx.view());
    stream.synchronize();
    check_same(device_x.values(), y);
    check_same(device_dx.values(), dx);
  }
}

TEST_CASE_TEMPLATE("cuda: dropout has the CPU's masks and bits, with and without a residual", T,
                   TESSERA_CUDA_ELEMENTS) {
  Stream host = host_stream();
  Stream stream = cuda_stream();
  for (const Form& form : forms) {
    for (const float probability : {0.0f, 0.3f}) {
      CAPTURE(form.columns);
      CAPTURE(probability);
      const Dropout drop{.probability = probability,
                         .key = {.seed = 7, .step = 3, .layer = 2, .first_row = (std::uint64_t{1} << 33) + 5}};
      std::vector<T> x = inputs<T>(form, 1), residual = inputs<T>(form, 2), y(x.size()), sum(x.size());
      const auto view = [&](std::vector<T>& of) { return matrix(of, form.rows, form.columns); };
      dropout<T>(host, drop, view(x), view(y));
      add_dropped<T>(host, {.residual = view(residual), .x = view(x), .y = view(sum), .dropout = drop});
      DeviceMatrix<T> device_x(x, form.rows, form.columns, form.shift);
      DeviceMatrix<T> device_residual(residual, form.rows, form.columns, form.shift);
      DeviceMatrix<T> device_y(form.rows, form.columns, form.shift);
      dropout<T>(stream, drop, device_x.view(), device_y.view());
      add_dropped<T>(
          stream,
          {.residual = device_residual.view(), .x = device_x.view(), .y = device_residual.view(), .dropout = drop});
      stream.synchronize();
      check_same(device_y.values(), y);
      check_same(device_residual.values(), sum);
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
