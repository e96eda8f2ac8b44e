// The layer functions over every element type: gradients in double are central differences of the values in double,
// and float, bf16 and fp16 are the values in double, rounded.
#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "instruction_sets.hpp"
#include "reference.hpp"
#include "tessera/nn/cross_entropy.hpp"
#include "tessera/nn/gelu.hpp"
#include "tessera/nn/linear.hpp"
#include "tessera/nn/relu.hpp"
#include "typed.hpp"

using namespace tessera;
using namespace tessera::nn;

namespace elements_test {

using Doubles = std::vector<double>;

// Finite differences with steps of 1e-5 lose about 1e-10 of values around 1.
constexpr double finite_differences = 1e-8;

// ---- linear ----

struct Sizes {
  std::size_t batch;
  std::size_t in;
  std::size_t out;
};
const std::vector<Sizes> all_sizes = {{1, 1, 1}, {3, 5, 7}, {11, 13, 2}, {0, 4, 3}, {17, 1, 19}, {70, 67, 131}};

template <typename T>
struct LinearRun {
  explicit LinearRun(const Sizes& s)
      : size(s),
        x(random_elements<T>(s.batch * s.in, 1)),
        w(random_elements<T>(s.out * s.in, 2)),
        b(random_elements<T>(s.out, 3)),
        dy(random_elements<T>(s.batch * s.out, 4)),
        y(s.batch * s.out, T(nan)),
        dx(s.batch * s.in, T(nan)),
        dw(s.out * s.in, T(nan)),
        db(s.out, T(nan)),
        scratch(linear_scratch<T>(s.batch, s.in, s.out)) {}

  template <typename U>
  void take(const LinearRun<U>& from) {  // the same inputs
    x = stored<T>(widened(from.x)), w = stored<T>(widened(from.w));
    b = stored<T>(widened(from.b)), dy = stored<T>(widened(from.dy));
  }
  void forward() {
    linear_forward<T>(stream, {.x = matrix(std::as_const(x), size.batch, size.in),
                               .weight = matrix(std::as_const(w), size.out, size.in),
                               .bias = b.data(),
                               .y = matrix(y, size.batch, size.out),
                               .scratch = scratch.data()});
  }
  void backward(bool accumulate = false) {
    linear_backward<T>(stream, {.x = matrix(std::as_const(x), size.batch, size.in),
                                .weight = matrix(std::as_const(w), size.out, size.in),
                                .dy = matrix(std::as_const(dy), size.batch, size.out),
                                .dx = accumulate ? MatrixView<T>{} : matrix(dx, size.batch, size.in),
                                .dweight = dw.data(),
                                .dbias = db.data(),
                                .accumulate = accumulate,
                                .scratch = scratch.data()});
  }
  double value() {
    forward();
    return dot(widened(y), widened(dy));
  }

  static constexpr float nan = std::numeric_limits<float>::quiet_NaN();
  Sizes size;
  std::vector<T> x, w, b, dy, y, dx, dw, db;
  std::vector<float> scratch;
  Stream stream = immediate_stream();
};

// ---- cross entropy ----

template <typename T>
struct LossRun {
  LossRun(std::size_t rows_, std::size_t classes_, float smoothing_ = 0.0f)
      : rows(rows_),
        classes(classes_),
        smoothing(smoothing_),
        logits(random_elements<T>(rows_ * classes_, 5)),
        statistics(cross_entropy_statistics(rows_, smoothing_)) {
    for (std::size_t row = 0; row < rows; ++row) labels.push_back(static_cast<std::int32_t>((row * 7 + 2) % classes));
  }
  CrossEntropyRows<T> operands() {
    return {.logits = matrix(std::as_const(logits), rows, classes),
            .labels = labels.data(),
            .denominator = 2.0f,
            .statistics = statistics.data(),
            .smoothing = smoothing};
  }
  double value() {
    Arithmetic<T> loss = 0;
    cross_entropy_forward<T>(stream, operands(), &loss);
    return static_cast<double>(loss);
  }
  void backward_in_place() { cross_entropy_backward<T>(stream, operands(), &scale, matrix(logits, rows, classes)); }

  std::size_t rows, classes;
  float smoothing;
  std::vector<T> logits;
  std::vector<std::int32_t> labels;
  std::vector<Arithmetic<T>> statistics;
  float scale = 4.0f;
  Stream stream = immediate_stream();
};

TEST_CASE("linear_gradients_in_double_are_the_central_differences") {
  for (const Sizes& s : std::vector<Sizes>{{1, 1, 1}, {3, 5, 7}, {5, 3, 2}}) {
    LinearRun<double> run(s);
    run.backward();
    const Doubles dx = run.dx, dw = run.dw, db = run.db;
    check_elements(dx, numeric_gradient(run.x, [&] { return run.value(); }), finite_differences);
    check_elements(dw, numeric_gradient(run.w, [&] { return run.value(); }), finite_differences);
    check_elements(db, numeric_gradient(run.b, [&] { return run.value(); }), finite_differences);
  }
}

TEST_CASE_TEMPLATE("linear_of_every_element_type_is_that_of_double_rounded", T, float, bf16, fp16) {
  for (const Sizes& s : all_sizes) {
    LinearRun<T> run(s);
    LinearRun<double> exact(s);
    exact.take(run);
    run.forward(), exact.forward();
    run.backward(), exact.backward();
    check_stored(run.y, exact.y, 10.0);
    check_stored(run.dx, exact.dx, 10.0);
    check_stored(run.dw, exact.dw, 10.0);
    check_stored(run.db, exact.db, 10.0);
    // Added once more, to what was stored, without the gradient of x.
    Doubles twice_w = widened(run.dw), twice_b = widened(run.db);
    for (std::size_t i = 0; i < twice_w.size(); ++i) twice_w[i] += exact.dw[i];
    for (std::size_t i = 0; i < twice_b.size(); ++i) twice_b[i] += exact.db[i];
    run.backward(true);
    check_stored(run.dw, twice_w, 10.0);
    check_stored(run.db, twice_b, 10.0);
  }
}

TEST_CASE("gelu_gradients_in_double_are_the_central_differences") {
  Stream stream = immediate_stream();
  Doubles x = widened(random_floats(37, 1));
  for (double& value : x) value *= 4.0;
  const Doubles dy = widened(random_floats(37, 2));
  Doubles y(37), dx(37);
  gelu_backward<double>(stream, matrix(std::as_const(x), 1, 37), matrix(dy, 1, 37), matrix(dx, 1, 37));
  const Doubles expected = numeric_gradient(x, [&] {
    gelu_forward<double>(stream, matrix(std::as_const(x), 1, 37), matrix(y, 1, 37));
    return dot(y, dy);
  });
  check_elements(dx, expected, finite_differences);
}

TEST_CASE_TEMPLATE("gelu_and_relu_of_every_element_type_are_those_of_double_rounded", T, float, bf16, fp16) {
  Stream stream = immediate_stream();
  const std::size_t n = 101;
  const std::vector<T> x = random_elements<T>(n, 1), dy = random_elements<T>(n, 2);
  const Doubles wide_x = widened(x), wide_dy = widened(dy);
  std::vector<T> y(n), dx(n);
  Doubles wide_y(n), wide_dx(n);
  const auto compare = [&](double magnitude) {
    check_stored(y, wide_y, magnitude);
    check_stored(dx, wide_dx, magnitude);
  };
  gelu_forward<T>(stream, matrix(x, 1, n), matrix(y, 1, n));
  gelu_forward<double>(stream, matrix(wide_x, 1, n), matrix(wide_y, 1, n));
  gelu_backward<T>(stream, matrix(x, 1, n), matrix(dy, 1, n), matrix(dx, 1, n));
  gelu_backward<double>(stream, matrix(wide_x, 1, n), matrix(wide_dy, 1, n), matrix(wide_dx, 1, n));
  compare(1.0);
  relu_forward<T>(stream, matrix(x, 1, n), matrix(y, 1, n));
  relu_forward<double>(stream, matrix(wide_x, 1, n), matrix(wide_y, 1, n));
  relu_backward<T>(stream, matrix(std::as_const(y), 1, n), matrix(dy, 1, n), matrix(dx, 1, n));
  relu_backward<double>(stream, matrix(std::as_const(wide_y), 1, n), matrix(wide_dy, 1, n), matrix(wide_dx, 1, n));
  compare(0.0);
}

// The test takes every half there is, NaN and both zeros among them.
TEST_CASE_TEMPLATE("relu_of_every_half_keeps_what_is_positive_and_nan_in_every_instruction_set", T, bf16, fp16) {
  std::vector<T> x;
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) x.push_back(std::bit_cast<T>(static_cast<std::uint16_t>(bits)));
  const std::vector<T> dy = random_elements<T>(x.size(), 3);
  check_same_bits([&] {
    Stream stream = immediate_stream();
    std::vector<T> y(x.size()), dx(x.size());
    relu_forward<T>(stream, matrix(std::as_const(x), 1, x.size()), matrix(y, 1, y.size()));
    relu_backward<T>(stream, matrix(std::as_const(y), 1, y.size()), matrix(dy, 1, dy.size()), matrix(dx, 1, dx.size()));
    for (std::size_t i = 0; i < x.size(); ++i) {
      const float in = static_cast<float>(x[i]), out = static_cast<float>(y[i]);
      CHECK((std::isnan(in) ? std::isnan(out) : out == std::max(in, 0.0f) && !std::signbit(out)));
      CHECK(static_cast<float>(dx[i]) == (in <= 0.0f ? 0.0f : static_cast<float>(dy[i])));
    }
    return bytes_of(y, dx);
  });
}

TEST_CASE("cross_entropy_gradients_in_double_are_the_central_differences") {
  for (const float smoothing : {0.0f, 0.3f, 1.0f}) {
    CAPTURE(smoothing);
    LossRun<double> run(5, 7, smoothing);
    Doubles expected = numeric_gradient(run.logits, [&] { return 4.0 * run.value(); });
    run.value();
    run.backward_in_place();
    check_elements(run.logits, expected, finite_differences);
  }
}

TEST_CASE_TEMPLATE("cross_entropy_of_every_element_type_is_that_of_double_rounded", T, float, bf16, fp16) {
  for (const auto& [rows, smoothing] :
       std::vector<std::pair<std::size_t, float>>{{0, 0}, {1, 0}, {13, 0}, {13, 0.1f}}) {
    LossRun<T> run(rows, 31, smoothing);
    LossRun<double> exact(rows, 31, smoothing);
    exact.logits = widened(run.logits);
    CHECK(std::abs(run.value() - exact.value()) < 1e-5 * (1.0 + exact.value()));  // the loss itself is a float
    run.backward_in_place(), exact.backward_in_place();
    check_stored(run.logits, exact.logits);
  }
}

}  // namespace elements_test
