// The layer functions on rows, in every element type: values and gradients against the formulas in double precision, at
// odd sizes, and the same bits in every instruction set and on any number of threads.
#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numbers>
#include <string>
#include <utility>
#include <vector>

#include "../data/allocation_counter.hpp"
#include "instruction_sets.hpp"
#include "reference.hpp"
#include "tessera/base/error.hpp"
#include "tessera/nn/cross_entropy.hpp"
#include "tessera/nn/dropout.hpp"
#include "tessera/nn/gelu.hpp"
#include "tessera/nn/linear.hpp"
#include "tessera/nn/relu.hpp"
#include "tessera/nn/threads.hpp"
#include "typed.hpp"

using namespace tessera;
using namespace tessera::nn;

namespace layers_test {

using Doubles = std::vector<double>;

constexpr float nan = std::numeric_limits<float>::quiet_NaN();

// Finite differences with steps of 1e-5 lose about 1e-10 of values around 1.
constexpr double finite_differences = 1e-8;

template <typename T>
std::vector<T> scaled(std::size_t count, unsigned seed, float factor) {
  std::vector<T> values = random_elements<T>(count, seed);
  for (T& value : values) value = static_cast<T>(static_cast<float>(value) * factor);
  return values;
}

// ---- linear ----

struct Sizes {
  std::size_t batch;
  std::size_t in;
  std::size_t out;
};
const std::vector<Sizes> all_sizes = {{1, 1, 1}, {3, 5, 7}, {11, 13, 2}, {0, 4, 3}, {17, 1, 19}, {70, 67, 131}};

template <typename T>
struct LinearRun {
  explicit LinearRun(const Sizes& s, Stream on = immediate_stream())
      : size(s),
        x(random_elements<T>(s.batch * s.in, 1)),
        w(random_elements<T>(s.out * s.in, 2)),
        b(random_elements<T>(s.out, 3)),
        dy(random_elements<T>(s.batch * s.out, 4)),
        y(unset<T>(s.batch * s.out)),
        dx(unset<T>(s.batch * s.in)),
        dw(unset<T>(s.out * s.in)),
        db(unset<T>(s.out)),
        scratch(linear_scratch<T>(s.batch, s.in, s.out)),
        stream(std::move(on)) {}

  template <typename U>
  void take(const LinearRun<U>& from) {  // the same inputs
    x = stored<T>(widened(from.x)), w = stored<T>(widened(from.w));
    b = stored<T>(widened(from.b)), dy = stored<T>(widened(from.dy));
  }
  LinearForward<T> operands() {
    return {.x = matrix(std::as_const(x), size.batch, size.in),
            .weight = matrix(std::as_const(w), size.out, size.in),
            .bias = b.data(),
            .y = matrix(y, size.batch, size.out),
            .scratch = scratch.data()};
  }
  void forward() { linear_forward<T>(stream, operands()); }
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
  Doubles reference(bool with_bias) const {
    const Doubles wide_x = widened(x), wide_w = widened(w), wide_b = widened(b);
    Doubles result(y.size(), 0.0);
    for (std::size_t at = 0; at < result.size(); ++at) {
      const std::size_t row = at / size.out, o = at % size.out;
      if (with_bias) result[at] = wide_b[o];
      for (std::size_t i = 0; i < size.in; ++i) result[at] += wide_x[row * size.in + i] * wide_w[o * size.in + i];
    }
    return result;
  }

  Sizes size;
  std::vector<T> x, w, b, dy, y, dx, dw, db;
  std::vector<float> scratch;
  Stream stream;
};

// ---- gelu ----

// The formula and its derivative.
struct GeluValues {
  Doubles y, slope;
};
GeluValues gelu_reference(const Doubles& x) {
  GeluValues result;
  for (const double v : x) {
    const double factor = std::sqrt(2.0 / std::numbers::pi);
    const double t = std::tanh(factor * (v + 0.044715 * v * v * v));
    result.y.push_back(0.5 * v * (1.0 + t));
    result.slope.push_back(0.5 * (1.0 + t) + 0.5 * v * (1.0 - t * t) * factor * (1.0 + 3 * 0.044715 * v * v));
  }
  return result;
}

// ---- cross entropy ----

struct LossForm {
  std::size_t rows;
  std::size_t classes;
  bool weighted = false;
  float smoothing = 0.0f;
};

template <typename T>
struct LossRun {
  explicit LossRun(const LossForm& of)
      : form(of), logits(scaled<T>(of.rows * of.classes, 5, 4.0f)), gradient(unset<T>(logits.size())) {
    for (std::size_t row = 0; row < form.rows; ++row) {
      labels.push_back(static_cast<std::int32_t>((row * 7 + 2) % form.classes));
      if (form.weighted) weights.push_back(row % 3 == 1 ? 0.0f : 0.5f + static_cast<float>(row % 5));
    }
  }

  CrossEntropyRows<T> operands() {
    return {.logits = matrix(std::as_const(logits), form.rows, form.classes),
            .labels = labels.data(),
            .weights = weights.empty() ? nullptr : weights.data(),
            .denominator = 1.75f,
            .statistics = statistics.data(),
            .smoothing = form.smoothing};
  }
  void forward() { cross_entropy_forward<T>(stream, operands(), loss.data()); }
  void backward(std::vector<T>& to) {
    cross_entropy_backward<T>(stream, operands(), &scale, matrix(to, form.rows, form.classes));
  }

  struct Expected {
    double loss = 0.0;
    Doubles gradient;
  };
  Expected reference() const {
    Expected result;
    const Doubles wide = widened(logits);
    const double classes = static_cast<double>(form.classes), smoothing = static_cast<double>(form.smoothing);
    for (std::size_t row = 0; row < form.rows; ++row) {
      const double* const from = &wide[row * form.classes];
      const double weight = (weights.empty() ? 1.0 : static_cast<double>(weights[row])) / 1.75;
      double sum = 0.0;
      for (std::size_t i = 0; i < form.classes; ++i) sum += std::exp(from[i]);
      for (std::size_t i = 0; i < form.classes; ++i) {
        const bool is_label = static_cast<std::size_t>(labels[row]) == i;
        const double target = (is_label ? 1.0 - smoothing : 0.0) + smoothing / classes;
        result.loss += weight * target * (std::log(sum) - from[i]);
        result.gradient.push_back(static_cast<double>(scale) * weight * (std::exp(from[i]) / sum - target));
      }
    }
    return result;
  }

  LossForm form;
  std::vector<T> logits, gradient;
  std::vector<std::int32_t> labels;
  std::vector<float> weights;
  std::vector<Arithmetic<T>> statistics =
      std::vector<Arithmetic<T>>(cross_entropy_statistics(form.rows, form.smoothing));
  std::vector<Arithmetic<T>> loss = unset<Arithmetic<T>>(1);
  float scale = 4.0f;
  Stream stream = immediate_stream();
};

TEST_CASE_TEMPLATE("linear_forward_is_the_formula_with_and_without_bias", T, TESSERA_ALL_ELEMENTS) {
  for (const Sizes& size : all_sizes) {
    LinearRun<T> run(size);
    run.forward();
    check_stored(run.y, run.reference(true), 2.0);
    LinearForward<T> without = run.operands();
    without.bias = nullptr;
    linear_forward<T>(run.stream, without);
    check_stored(run.y, run.reference(false), 2.0);
  }
}

TEST_CASE("linear_gradients_in_double_are_the_central_differences") {
  for (const Sizes& s : std::vector<Sizes>{{1, 1, 1}, {3, 5, 7}, {5, 3, 2}}) {
    LinearRun<double> run(s);
    run.backward();
    check_elements(run.dx, numeric_gradient(run.x, [&] { return run.value(); }), finite_differences);
    check_elements(run.dw, numeric_gradient(run.w, [&] { return run.value(); }), finite_differences);
    check_elements(run.db, numeric_gradient(run.b, [&] { return run.value(); }), finite_differences);
  }
}

TEST_CASE_TEMPLATE("linear_gradients_of_every_element_type_are_those_of_double_rounded", T, float, bf16, fp16) {
  for (const Sizes& s : all_sizes) {
    LinearRun<T> run(s);
    LinearRun<double> exact(s);
    exact.take(run);
    run.backward(), exact.backward();
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

TEST_CASE("a_residual_is_added_to_the_rounded_result") {
  for (const Sizes& size : all_sizes) {
    LinearRun<float> run(size);
    run.forward();
    std::vector<float> sum = unset<float>(run.y.size());
    LinearForward<float> added = run.operands();
    added.y = matrix(sum, size.batch, size.out);
    added.residual = matrix(std::as_const(run.dy), size.batch, size.out);
    linear_forward(run.stream, added);
    for (std::size_t i = 0; i < sum.size(); ++i) CHECK(sum[i] == run.y[i] + run.dy[i]);
    added.gelu = matrix(run.y, size.batch, size.out);
    CHECK_THROWS_WITH_AS(linear_forward(run.stream, added), doctest::Contains("gelu and a residual"), UsageError);
  }
}

TEST_CASE_TEMPLATE("relu_keeps_what_is_positive_and_its_gradient_follows", T, double, float) {
  Stream stream = immediate_stream();
  for (const std::size_t count : std::vector<std::size_t>{0, 1, 37}) {
    std::vector<T> x = random_elements<T>(count, 6), y = unset<T>(count), dx = y;
    if (count > 2) x[1] = 0;
    const std::vector<T> dy = random_elements<T>(count, 7);
    relu_forward<T>(stream, matrix(std::as_const(x), 1, count), matrix(y, 1, count));
    relu_backward<T>(stream, matrix(std::as_const(y), 1, count), matrix(dy, 1, count), matrix(dx, 1, count));
    for (std::size_t i = 0; i < count; ++i) {
      CHECK(y[i] == std::max(x[i], T{0}));
      CHECK(dx[i] == (x[i] > 0 ? dy[i] : T{0}));
    }
    relu_forward<T>(stream, matrix(std::as_const(x), 1, count), matrix(x, 1, count));  // in place
    CHECK(x == y);
  }
  std::vector<T> x = unset<T>(1);
  relu_forward<T>(stream, matrix(std::as_const(x), 1, 1), matrix(x, 1, 1));
  CHECK(std::isnan(x[0]));
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

TEST_CASE_TEMPLATE("gelu_and_its_gradient_are_those_of_the_formula", T, TESSERA_ALL_ELEMENTS) {
  Stream stream = immediate_stream();
  for (const std::size_t count : std::vector<std::size_t>{0, 1, 101}) {
    const std::vector<T> x = scaled<T>(count, 8, 4.0f);
    std::vector<T> dy = random_elements<T>(count, 9), y = unset<T>(count);
    const GeluValues expected = gelu_reference(widened(x));
    Doubles gradient = widened(dy);
    for (std::size_t i = 0; i < count; ++i) gradient[i] *= expected.slope[i];
    gelu_forward<T>(stream, matrix(x, 1, count), matrix(y, 1, count));
    check_stored(y, expected.y, 0.2);
    gelu_backward<T>(stream, matrix(x, 1, count), matrix(std::as_const(dy), 1, count),
                     matrix(dy, 1, count));  // in place
    check_stored(dy, gradient, 0.2);
  }
}

TEST_CASE_TEMPLATE("cross_entropy_and_its_gradient_are_those_of_the_formula", T, TESSERA_ALL_ELEMENTS) {
  for (const std::size_t rows : std::vector<std::size_t>{0, 1, 5, 23}) {
    for (const std::size_t classes : std::vector<std::size_t>{1, 2, 13, 31}) {
      for (const LossForm& form : {LossForm{rows, classes}, LossForm{rows, classes, true},
                                   LossForm{rows, classes, true, 0.3f}, LossForm{rows, classes, false, 1.0f}}) {
        CAPTURE(rows);
        CAPTURE(classes);
        CAPTURE(form.smoothing);
        LossRun<T> run(form), at_once(form);
        const auto expected = run.reference();
        run.forward();
        run.backward(run.gradient);
        CHECK(std::abs(static_cast<double>(run.loss[0]) - expected.loss) <= 1e-5 * (1.0 + expected.loss));
        check_stored(run.gradient, expected.gradient, 2.0);
        cross_entropy_at_once<T>(at_once.stream, at_once.operands(), at_once.loss.data(), &at_once.scale,
                                 matrix(at_once.logits, rows, classes));
        CHECK(at_once.loss == run.loss);
        CHECK(bytes_of(at_once.logits) == bytes_of(run.gradient));
        run.backward(run.logits);  // in place
        CHECK(bytes_of(run.logits) == bytes_of(run.gradient));
      }
    }
  }
}

TEST_CASE("large_logits_do_not_overflow_the_cross_entropy") {
  Stream stream = immediate_stream();
  const std::vector<float> logits = {1000.0f, -1000.0f, 3e38f, -3e38f};
  const std::vector<std::int32_t> labels = {0, 0};
  std::vector<float> statistics(4);
  const CrossEntropyRows<float> rows{
      .logits = matrix(logits, 2, 2), .labels = labels.data(), .statistics = statistics.data()};
  float loss = nan;
  cross_entropy_forward<float>(stream, rows, &loss);
  CHECK(loss == 0.0f);
  stream.synchronize();
}

TEST_CASE("rows_of_weight_zero_count_nothing_whatever_they_hold") {
  LossRun<float> clean({5, 3, true}), dirty({5, 3, true});
  for (const std::size_t row : std::vector<std::size_t>{1, 4}) {  // the rows of weight 0
    dirty.labels[row] = -77;
    for (std::size_t i = 0; i < 3; ++i) dirty.logits[row * 3 + i] = nan;
  }
  for (LossRun<float>* run : {&clean, &dirty}) run->forward(), run->backward(run->gradient);
  CHECK(dirty.loss == clean.loss);
  CHECK(dirty.gradient == clean.gradient);
  dirty.stream.synchronize();
}

TEST_CASE("a_label_out_of_range_is_an_error_of_the_stream") {
  for (const std::int32_t label : {-1, 3}) {
    LossRun<float> run({2, 3});
    run.labels[1] = label;
    run.forward();
    const std::string expected =
        "cross entropy: the label of row 1 is " + std::to_string(label) + ", but there are 3 classes";
    CHECK_THROWS_WITH_AS(run.stream.synchronize(), expected.c_str(), UsageError);
  }
}

TEST_CASE("correct_predictions_are_counted_by_weight") {
  Stream stream = immediate_stream();
  const std::vector<float> logits = {0.0f, 2.0f, 1.0f, 5.0f, 5.0f, 1.0f, 1.0f, 2.0f, 3.0f};
  std::vector<std::int32_t> labels = {1, 0, 2};
  const std::vector<float> weights = {1.0f, 1.0f, 0.0f};
  double correct = -1.0;
  count_correct<float>(stream, {.logits = matrix(logits, 3, 3), .labels = labels.data()}, &correct);
  CHECK(correct == 3.0);
  labels[2] = -7;  // of weight 0: not looked at
  count_correct<float>(stream, {.logits = matrix(logits, 3, 3), .labels = labels.data(), .weights = weights.data()},
                       &correct);
  CHECK(correct == 2.0);
  stream.synchronize();
}

TEST_CASE("labels_among_the_largest_logits_are_counted_and_nan_is_never_right") {
  Stream stream = immediate_stream();
  // The label's logit comes first, second (of equals), third, after a NaN, and is one.
  const std::vector<float> logits = {9, 1, 2, 3, 5, 5, 1, 2, 4, 3, 2, 1, nan, 0, 7, 1, 1, nan, 2, 3};
  const std::vector<std::int32_t> labels = {0, 1, 2, 2, 1};
  const std::vector<double> expected = {0.0, 1.0, 3.0, 4.0, 5.0};
  for (std::size_t among = 1; among <= 4; ++among) {
    CAPTURE(among);
    double correct = -1.0;
    count_correct<float>(stream, {.logits = matrix(logits, 5, 4), .labels = labels.data()}, &correct, among);
    CHECK(correct == expected[among]);
  }
  stream.synchronize();
}

TEST_CASE("shapes_that_do_not_fit_are_named") {
  Stream stream = immediate_stream();
  std::vector<float> data(64);
  CHECK_THROWS_WITH_AS(linear_forward<float>(stream, {.x = matrix(std::as_const(data), 2, 3),
                                                      .weight = matrix(std::as_const(data), 5, 4),
                                                      .y = matrix(data, 2, 5)}),
                       "linear: x must be [2, 4], but is [2, 3]", UsageError);
  CHECK_THROWS_AS(relu_forward<float>(stream, matrix(std::as_const(data), 2, 3), matrix(data, 3, 2)), UsageError);
  CHECK_THROWS_AS(gelu_forward<float>(stream, matrix(std::as_const(data), 2, 3), matrix(data, 3, 2)), UsageError);
  LossRun<float> smoothed({1, 3, false, 1.5f});
  CHECK_THROWS_WITH_AS(smoothed.forward(), "cross entropy: smoothing must be 0 to 1, but is 1.5", UsageError);
}

// A call of each function on memory that is there; what describes the operations is gone before they run.
struct AllFunctions {
  explicit AllFunctions(Stream on = immediate_stream()) : linear({13, 17, 7}, std::move(on)) {}

  void call() {
    const MatrixView<float> y = matrix(linear.y, 13, 7);
    linear.forward();
    relu_forward<float>(linear.stream, y, y);
    gelu_forward<float>(linear.stream, y, y);
    const CrossEntropyRows<float> rows{
        .logits = y, .labels = labels.data(), .denominator = 13.0f, .statistics = statistics.data()};
    cross_entropy_forward<float>(linear.stream, rows, &loss);
    cross_entropy_backward<float>(linear.stream, rows, &scale, matrix(linear.dy, 13, 7));
    linear.backward();
  }

  LinearRun<float> linear;
  std::vector<float> statistics = std::vector<float>(2 * 13);
  std::vector<std::int32_t> labels = std::vector<std::int32_t>(13, 3);
  float loss = nan;
  float scale = 1.0f;
};

TEST_CASE("on_a_queued_stream_the_host_runs_ahead_and_bits_stay_the_same") {
  AllFunctions expected;
  expected.call();
  for (std::uint64_t seed = 0; seed < 5; ++seed) {
    AllFunctions queued(Stream(Device::cpu(), {.name = "compute", .delay_seed = seed}));
    queued.call();
    queued.linear.stream.synchronize();
    CHECK(queued.loss == expected.loss);
    CHECK(bytes_of(queued.linear.dx, queued.linear.dw, queued.linear.db) ==
          bytes_of(expected.linear.dx, expected.linear.dw, expected.linear.db));
  }
}

TEST_CASE("layer_functions_allocate_nothing") {
  AllFunctions all;
  const std::size_t before = allocations_so_far();
  for (int round = 0; round < 3; ++round) all.call();
  CHECK(allocations_so_far() == before);
}

TEST_CASE_TEMPLATE("elements_have_the_same_bits_in_every_instruction_set_and_on_any_number_of_threads", T,
                   TESSERA_ALL_ELEMENTS) {
  constexpr Dropout some_dropout{.probability = 0.25f, .key = {.seed = 3, .step = 9, .layer = 2, .first_row = 5}};
  Stream stream = immediate_stream();
  for (const std::size_t columns : std::vector<std::size_t>{1, 16, 37, 467, 1500}) {
    const std::size_t rows = columns == 467 ? 211 : 5;  // so many are worth sharing
    const std::vector<T> x = random_elements<T>(rows * columns, 1), dy = random_elements<T>(rows * columns, 2);
    const auto bits = [&] {
      std::vector<std::vector<T>> to(7, unset<T>(x.size()));
      const auto view = [&](std::size_t at) { return matrix(to[at], rows, columns); };
      const auto vx = matrix(x, rows, columns), vdy = matrix(dy, rows, columns);
      gelu_forward<T>(stream, vx, view(0));
      gelu_backward<T>(stream, vx, vdy, view(1));
      relu_forward<T>(stream, vx, view(2));
      relu_backward<T>(stream, vx, vdy, view(3));
      dropout<T>(stream, some_dropout, vx, view(4));
      add_dropped<T>(stream, {.residual = vdy, .x = vx, .y = view(5), .dropout = some_dropout});
      add_dropped<T>(stream, {.residual = vdy, .x = vx, .y = view(6)});
      return bytes_of(to[0], to[1], to[2], to[3], to[4], to[5], to[6]);
    };
    check_same_bits(bits);
    check_same_bits_on_threads(bits);
  }
}

TEST_CASE_TEMPLATE("cross_entropy_has_the_same_bits_in_every_instruction_set_and_on_any_number_of_threads", T,
                   TESSERA_ALL_ELEMENTS) {
  for (const std::size_t classes : std::vector<std::size_t>{1, 16, 37, 467, 1500}) {
    LossRun<T> run({classes == 467 ? 211u : 5u, classes, true});  // so many are worth sharing
    std::vector<double> correct(1);
    const auto bits = [&] {
      run.forward();
      run.backward(run.gradient);
      count_correct<T>(run.stream, run.operands(), correct.data());
      return bytes_of(run.statistics, run.loss, run.gradient, correct);
    };
    check_same_bits(bits);
    check_same_bits_on_threads(bits);
  }
}

TEST_CASE("the_first_row_with_a_wrong_label_is_named_on_any_number_of_threads") {
  for (const int threads : {1, 2, 7}) {
    set_threads(threads);
    LossRun<float> run({211, 467});
    for (const std::size_t row : {80, 81, 200}) run.labels[row] = -1;
    run.forward();
    CHECK_THROWS_WITH_AS(run.stream.synchronize(),
                         "cross entropy: the label of row 80 is -1, but there are 467 classes", UsageError);
  }
  set_threads(1);
}

}  // namespace layers_test
