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
struct Case {
  explicit Case(const Form& of)
      : form(of),
        x(random_elements<T>(of.rows * of.dim, 1)),
        weight(random_elements<T>(of.dim, 2)),
        bias(random_elements<T>(of.dim, 3)),
        dy(random_elements<T>(of.rows * of.dim, 4)),
        residual(random_elements<T>(of.rows * of.dim, 5)),
        y(x.size()),
        dx(x.size()),
        dweight(of.dim, T(0.5f)),
        dbias(of.dim, T(0.25f)),
        mean(of.rows),
        inverse(of.rows) {}

  Form form;
  std::vector<T> x, weight, bias, dy, residual, y, dx, dweight, dbias;
  std::vector<float> mean, inverse;
};

template <typename T>
void run(DeviceKind kind, Case<T>& c, bool with_residual, bool accumulate) {
  Stream stream = stream_on(kind);
  const auto device = [&](const std::vector<T>& of) {
    return DeviceMatrix<T>(kind, of, c.form.rows, c.form.dim, c.form.shift);
  };
  DeviceMatrix<T> x = device(c.x), dy = device(c.dy), residual = device(c.residual), y = device(c.y);
  DeviceMatrix<T> weight(kind, c.weight, 1, c.form.dim), bias(kind, c.bias, 1, c.form.dim);
  DeviceMatrix<T> dweight(kind, c.dweight, 1, c.form.dim), dbias(kind, c.dbias, 1, c.form.dim);
  DeviceMatrix<float> mean(kind, 1, c.form.rows), inverse(kind, 1, c.form.rows);
  DeviceBuffer<float> scratch(kind, layer_norm_scratch(c.form.rows, c.form.dim, kind));
  DeviceMatrix<T>& dx = with_residual ? residual : dy;
  layer_norm_forward<T>(stream, {.x = x.view(),
                                 .weight = weight.data(),
                                 .bias = bias.data(),
                                 .y = y.view(),
                                 .mean = mean.data(),
                                 .inverse = inverse.data()});
  layer_norm_backward<T>(stream, {.x = x.view(),
                                  .weight = weight.data(),
                                  .mean = mean.data(),
                                  .inverse = inverse.data(),
                                  .dy = dy.view(),
                                  .residual = with_residual ? residual.data() : nullptr,
                                  .dx = dx.view(),
                                  .dweight = dweight.data(),
                                  .dbias = dbias.data(),
                                  .accumulate = accumulate,
                                  .scratch = scratch.data()});
  stream.synchronize();
  CHECK(scratch.guards_intact());
  c.y = y.values(), c.dx = dx.values(), c.dweight = dweight.values(), c.dbias = dbias.values();
  c.mean = mean.values(), c.inverse = inverse.values();
}

TEST_CASE_TEMPLATE("cuda: layer norm and its gradients are near the CPU's", T, TESSERA_CUDA_ELEMENTS) {
  for (const Form& form : forms) {
    for (const bool with_residual : {false, true}) {
      for (const bool accumulate : {false, true}) {
        CAPTURE(form.rows);
        CAPTURE(form.dim);
        CAPTURE(with_residual);
        CAPTURE(accumulate);
        Case<T> expected(form), computed(form);
        run(DeviceKind::cpu, expected, with_residual, accumulate);
        run(DeviceKind::cuda, computed, with_residual, accumulate);
        check_near(computed.y, expected.y);
        check_near(computed.mean, expected.mean);
        check_near(computed.inverse, expected.inverse);
        check_near(computed.dx, expected.dx);
        check_near(computed.dweight, expected.dweight);
        check_near(computed.dbias, expected.dbias);
      }
    }
  }
}

TEST_CASE("cuda: gradients of layer norm's parameters have the same bits each time") {
  const Form form{300, 34, 0};
  Case<bf16> first(form), second(form);
  run(DeviceKind::cuda, first, false, false);
  run(DeviceKind::cuda, second, false, false);
  check_same(first.dweight, second.dweight);
  check_same(first.dbias, second.dbias);
  check_same(first.dx, second.dx);
}

}  // namespace nn_layer_norm_test
