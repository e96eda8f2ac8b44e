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

template <typename T>
Operand<T> given(const Form& form, unsigned seed) {
  return same(inputs<T>(form, seed), form.shift);
}
template <typename T>
std::vector<T> nothing_yet(const Form& form) {
  return unset<T>(form.rows * form.columns);
}

TEST_CASE_TEMPLATE("cuda: gelu and its gradient are near the CPU's", T, TESSERA_CUDA_ELEMENTS) {
  for (const Form& form : forms) {
    CAPTURE(form.columns);
    compare_with_the_cpu(
        [&](Stream& on, T* x, T* dy, T* y) {
          const auto view = [&](T* data) { return MatrixView<T>{data, form.rows, form.columns}; };
          gelu_forward<T>(on, view(x), view(y));
          gelu_backward<T>(on, view(x), view(dy), view(dy));
        },
        given<T>(form, 1), near(inputs<T>(form, 2), 2e-6, form.shift), near(nothing_yet<T>(form), 2e-6, form.shift));
  }
}

TEST_CASE_TEMPLATE("cuda: relu and its gradient have the CPU's bits", T, TESSERA_CUDA_ELEMENTS) {
  for (const Form& form : forms) {
    CAPTURE(form.columns);
    Operand<T> x = given<T>(form, 1);
    if (!x.values.empty()) x.values[0] = T(std::numeric_limits<float>::quiet_NaN()), x.values.back() = T(-0.0f);
    compare_with_the_cpu(
        [&](Stream& on, T* in_place, T* dy, T* dx) {
          const auto view = [&](T* data) { return MatrixView<T>{data, form.rows, form.columns}; };
          relu_forward<T>(on, view(in_place), view(in_place));
          relu_backward<T>(on, view(in_place), view(dy), view(dx));
        },
        x, given<T>(form, 2), same(nothing_yet<T>(form), form.shift));
  }
}

TEST_CASE_TEMPLATE("cuda: dropout has the CPU's masks and bits, with and without a residual", T,
                   TESSERA_CUDA_ELEMENTS) {
  for (const Form& form : forms) {
    for (const float probability : {0.0f, 0.3f}) {
      CAPTURE(form.columns);
      CAPTURE(probability);
      const Dropout drop{.probability = probability,
                         .key = {.seed = 7, .step = 3, .layer = 2, .first_row = (std::uint64_t{1} << 33) + 5}};
      compare_with_the_cpu(
          [&](Stream& on, T* x, T* residual, T* y) {
            const auto view = [&](T* data) { return MatrixView<T>{data, form.rows, form.columns}; };
            dropout<T>(on, drop, view(x), view(y));
            add_dropped<T>(on, {.residual = view(residual), .x = view(x), .y = view(residual), .dropout = drop});
          },
          given<T>(form, 1), given<T>(form, 2), same(nothing_yet<T>(form), form.shift));
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
