// Layer normalisation on CUDA devices against the CPU.
#include "nn_device.hpp"
#include "tessera/nn/layer_norm.hpp"

using namespace tessera;
using namespace tessera::nn;
using namespace tessera::test;

namespace nn_layer_norm_test {

struct Form {
  std::size_t rows;
  std::size_t dim;
  std::size_t shift;
};
// Rows that fill no pack, and up to four, seven and eight packs of a lane, and more.
const std::vector<Form> forms = {{0, 5, 0},     {1, 1, 0},    {3, 7, 0},    {130, 66, 0}, {5, 40, 1},
                                 {130, 264, 0}, {9, 1032, 0}, {2, 2000, 0}, {2, 2056, 0}};

template <typename T>
void compare_layer_norms(Comparison comparison, const Form& form, bool with_residual, bool accumulate) {
  const std::size_t count = form.rows * form.dim;
  compare(
      comparison,
      [&](Stream& on, T* x, T* weight, T* bias, T* dy, T* residual, T* y, T* dweight, T* dbias, float* mean,
          float* inverse, float* scratch) {
        const auto view = [&](T* data) { return MatrixView<T>{data, form.rows, form.dim}; };
        layer_norm_forward<T>(
            on, {.x = view(x), .weight = weight, .bias = bias, .y = view(y), .mean = mean, .inverse = inverse});
        layer_norm_backward<T>(on, {.x = view(x),
                                    .weight = weight,
                                    .mean = mean,
                                    .inverse = inverse,
                                    .dy = view(dy),
                                    .residual = with_residual ? residual : nullptr,
                                    .dx = view(with_residual ? residual : dy),
                                    .dweight = dweight,
                                    .dbias = dbias,
                                    .accumulate = accumulate,
                                    .scratch = scratch});
      },
      same(random_elements<T>(count, 1), form.shift), same(random_elements<T>(form.dim, 2)),
      same(random_elements<T>(form.dim, 3)), near(random_elements<T>(count, 4), 2e-6, form.shift),
      near(random_elements<T>(count, 5), 2e-6, form.shift), near(unset<T>(count), 2e-6, form.shift),
      near(std::vector<T>(form.dim, T(0.5f))), near(std::vector<T>(form.dim, T(0.25f))), near(unset<float>(form.rows)),
      near(unset<float>(form.rows)),
      Scratch{layer_norm_scratch(form.rows, form.dim, DeviceKind::cpu),
              layer_norm_scratch(form.rows, form.dim, DeviceKind::cuda)});
}

TEST_CASE_TEMPLATE("cuda: layer norm and its gradients are near the CPU's", T, TESSERA_CUDA_ELEMENTS) {
  for (const Form& form : forms) {
    for (const bool with_residual : {false, true}) {
      for (const bool accumulate : {false, true}) {
        CAPTURE(form.rows);
        CAPTURE(form.dim);
        CAPTURE(with_residual);
        CAPTURE(accumulate);
        compare_layer_norms<T>(Comparison::with_the_cpu, form, with_residual, accumulate);
      }
    }
  }
}

TEST_CASE("cuda: gradients of layer norm's parameters have the same bits each time") {
  compare_layer_norms<bf16>(Comparison::with_itself, {300, 34, 0}, false, false);
}

}  // namespace nn_layer_norm_test
