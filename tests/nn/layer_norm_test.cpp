// Layer normalisation: the formula, its gradients, and the same bits on every instruction set.
#include "tessera/nn/layer_norm.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "instruction_sets.hpp"
#include "tessera/base/error.hpp"
#include "typed.hpp"

using namespace tessera;
using namespace tessera::nn;

namespace layer_norm_test {

struct Size {
  std::size_t rows;
  std::size_t dim;
};
const std::vector<Size> sizes = {{0, 3}, {1, 1}, {1, 2}, {3, 5}, {5, 16}, {7, 31}, {2, 64}, {3, 97}, {11, 130}};

// Operands, results, and the formula in double.
template <typename T>
struct LayerNormCase {
  explicit LayerNormCase(const Size& of)
      : size(of),
        x(random_elements<T>(of.rows * of.dim, 1)),
        weight(random_elements<T>(of.dim, 2)),
        bias(random_elements<T>(of.dim, 3)),
        dy(random_elements<T>(of.rows * of.dim, 4)) {}

  void forward(Stream& stream) {
    layer_norm_forward<T>(stream, {.x = matrix(std::as_const(x), size.rows, size.dim),
                                   .weight = weight.data(),
                                   .bias = bias.data(),
                                   .y = matrix(y, size.rows, size.dim),
                                   .mean = mean.data(),
                                   .inverse = inverse.data()});
  }

  LayerNormBackward<T> backward_operands() {
    return {.x = matrix(std::as_const(x), size.rows, size.dim),
            .weight = weight.data(),
            .mean = mean.data(),
            .inverse = inverse.data(),
            .dy = matrix(std::as_const(dy), size.rows, size.dim),
            .dx = matrix(dx, size.rows, size.dim),
            .dweight = dweight.data(),
            .dbias = dbias.data()};
  }

  std::vector<double> reference() const {
    std::vector<double> result;
    const auto dim = static_cast<double>(size.dim);
    for (std::size_t row = 0; row < size.rows; ++row) {
      const double* const from = wide_x.data() + row * size.dim;
      double sum = 0.0;
      double squares = 0.0;
      for (std::size_t i = 0; i < size.dim; ++i) sum += from[i];
      for (std::size_t i = 0; i < size.dim; ++i) squares += (from[i] - sum / dim) * (from[i] - sum / dim);
      for (std::size_t i = 0; i < size.dim; ++i) {
        result.push_back((from[i] - sum / dim) / std::sqrt(squares / dim + 1e-5) * wide_weight[i] + wide_bias[i]);
      }
    }
    return result;
  }
  double loss() const { return dot(reference(), widened(dy)); }

  Size size;
  std::vector<T> x, weight, bias, dy;
  std::vector<T> y = unset<T>(x.size()), dx = unset<T>(x.size()), dweight = unset<T>(size.dim),
                 dbias = unset<T>(size.dim);
  std::vector<Arithmetic<T>> mean = std::vector<Arithmetic<T>>(size.rows), inverse = mean;
  std::vector<double> wide_x = widened(x), wide_weight = widened(weight), wide_bias = widened(bias);
};

// Rows of two or three elements close together have a deviation near 0, which magnifies every rounding.
template <typename T>
double gradient_tolerance() {
  return std::is_same_v<T, double> ? 1e-6 : 4.0 * tolerance<T>();
}

TEST_CASE_TEMPLATE("layer_norm_is_the_formula", T, TESSERA_ALL_ELEMENTS) {
  Stream stream = immediate_stream();
  for (const Size& size : sizes) {
    LayerNormCase<T> c(size);
    c.forward(stream);
    check_elements(c.y, c.reference());
  }
  stream.synchronize();
}

TEST_CASE_TEMPLATE("layer_norm_gradients_are_the_central_differences", T, TESSERA_ALL_ELEMENTS) {
  Stream stream = immediate_stream();
  for (const Size& size : sizes) {
    CAPTURE(size.rows);
    CAPTURE(size.dim);
    LayerNormCase<T> c(size);
    c.forward(stream);
    layer_norm_backward<T>(stream, c.backward_operands());
    check_elements(c.dx, numeric_gradient(c.wide_x, [&] { return c.loss(); }), gradient_tolerance<T>());
    check_elements(c.dweight, numeric_gradient(c.wide_weight, [&] { return c.loss(); }), gradient_tolerance<T>());
    check_elements(c.dbias, numeric_gradient(c.wide_bias, [&] { return c.loss(); }), gradient_tolerance<T>());
  }
  stream.synchronize();
}

TEST_CASE("layer_norm_backward_works_in_place_and_adds_a_residual") {
  Stream stream = immediate_stream();
  LayerNormCase<float> c({5, 37});
  c.forward(stream);
  LayerNormBackward<float> operands = c.backward_operands();
  layer_norm_backward<float>(stream, operands);
  const std::vector<float> dx = c.dx;
  const std::vector<float> residual = c.dy;
  operands.residual = c.dy.data();
  operands.dx = matrix(c.dy, 5, 37);
  layer_norm_backward<float>(stream, operands);
  for (std::size_t i = 0; i < dx.size(); ++i) CHECK(c.dy[i] == residual[i] + dx[i]);
  stream.synchronize();
}

TEST_CASE("layer_norm_gradients_accumulated_over_parts_are_those_of_the_whole") {
  Stream stream = immediate_stream();
  LayerNormCase<float> c({7, 83});
  c.forward(stream);
  layer_norm_backward<float>(stream, c.backward_operands());
  const std::string whole = bytes_of(c.dweight, c.dbias);
  for (const std::size_t first : std::vector<std::size_t>{0, 3}) {
    LayerNormBackward<float> operands = c.backward_operands();
    operands.x.rows = operands.dy.rows = operands.dx.rows = first == 0 ? 3 : 4;
    operands.x.data += first * 83;
    operands.dy.data += first * 83;
    operands.dx.data += first * 83;
    operands.mean += first;
    operands.inverse += first;
    operands.accumulate = first > 0;
    layer_norm_backward<float>(stream, operands);
  }
  CHECK(bytes_of(c.dweight, c.dbias) == whole);
  stream.synchronize();
}

TEST_CASE_TEMPLATE("layer_norm_has_the_same_bits_in_every_instruction_set_and_on_any_number_of_threads", T,
                   TESSERA_ALL_ELEMENTS) {
  std::vector<Size> with_large = sizes;
  with_large.push_back({211, 467});
  for (const Size& size : with_large) {
    Stream stream = immediate_stream();
    LayerNormCase<T> c(size);
    const auto bits = [&] {
      c.forward(stream);
      layer_norm_backward<T>(stream, c.backward_operands());
      std::vector<T> dx = c.dy;
      LayerNormBackward<T> in_place = c.backward_operands();
      in_place.dy = in_place.dx = matrix(dx, size.rows, size.dim);
      in_place.residual = c.x.data();
      in_place.accumulate = true;
      layer_norm_backward<T>(stream, in_place);
      return bytes_of(c.y, c.mean, c.inverse, c.dx, dx, c.dweight, c.dbias);
    };
    check_same_bits(bits);
    check_same_bits_on_threads(bits);
  }
}

TEST_CASE("layer_norm_refuses_shapes_that_do_not_fit") {
  Stream stream = immediate_stream();
  LayerNormCase<float> c({3, 4});
  LayerNormBackward<float> operands = c.backward_operands();
  operands.dx.columns = 3;
  CHECK_THROWS_WITH_AS(layer_norm_backward<float>(stream, operands), "layer norm: dx must be [3, 4], but is [3, 3]",
                       UsageError);
  CHECK_THROWS_AS(layer_norm_forward<float>(stream, {}), UsageError);
}

}  // namespace layer_norm_test
