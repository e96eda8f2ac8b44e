// The raw layer functions: values and gradients against double precision and central differences, at odd sizes.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <vector>

#include "../data/allocation_counter.hpp"
#include "reference.hpp"
#include "tessera/base/error.hpp"
#include "tessera/nn/cross_entropy.hpp"
#include "tessera/nn/gelu.hpp"
#include "tessera/nn/linear.hpp"
#include "tessera/nn/relu.hpp"
#include "typed.hpp"

using namespace tessera;
using namespace tessera::nn;

namespace layers_test {

constexpr float unset = std::numeric_limits<float>::quiet_NaN();

// ---- linear ----

struct LinearSizes {
  std::size_t batch;
  std::size_t in;
  std::size_t out;
};
const std::vector<LinearSizes> linear_sizes = {{1, 1, 1}, {3, 5, 7}, {11, 13, 2}, {0, 4, 3}, {17, 1, 19}};

// x, w, b and an upstream gradient, in fp32 and fp64.
struct LinearCase {
  explicit LinearCase(const LinearSizes& s)
      : size(s),
        x(random_floats(s.batch * s.in, 1)),
        w(random_floats(s.out * s.in, 2)),
        b(random_floats(s.out, 3)),
        dy(random_floats(s.batch * s.out, 4)) {}

  std::vector<double> reference() const {
    std::vector<double> y(size.batch * size.out);
    for (std::size_t row = 0; row < size.batch; ++row) {
      for (std::size_t o = 0; o < size.out; ++o) {
        double sum = wide_b[o];
        for (std::size_t i = 0; i < size.in; ++i) sum += wide_x[row * size.in + i] * wide_w[o * size.in + i];
        y[row * size.out + o] = sum;
      }
    }
    return y;
  }

  LinearSizes size;
  std::vector<float> x, w, b, dy;
  std::vector<double> wide_x = widened(x), wide_w = widened(w), wide_b = widened(b);
};

// ---- elementwise ----

const std::vector<double> gelu_reference(const std::vector<double>& x) {
  std::vector<double> y(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double inner = std::sqrt(2.0 / std::numbers::pi) * (x[i] + 0.044715 * x[i] * x[i] * x[i]);
    y[i] = 0.5 * x[i] * (1.0 + std::tanh(inner));
  }
  return y;
}

std::vector<float> scaled(std::vector<float> values, float factor) {
  for (float& value : values) value *= factor;
  return values;
}

// ---- cross entropy ----

struct CrossEntropyCase {
  CrossEntropyCase(std::size_t batch, std::size_t classes_, bool weighted)
      : rows(batch),
        classes(classes_),
        logits(scaled(random_floats(batch * classes_, 5), 4.0f)),
        statistics(2 * batch) {
    for (std::size_t row = 0; row < rows; ++row) {
      labels.push_back(static_cast<std::int32_t>((row * 7 + 2) % classes));
      if (weighted) weights.push_back(row % 3 == 1 ? 0.0f : 0.5f + static_cast<float>(row));
    }
  }

  CrossEntropyRows<float> operands() {
    return {.logits = matrix(std::as_const(logits), rows, classes),
            .labels = labels.data(),
            .weights = weights.empty() ? nullptr : weights.data(),
            .denominator = 1.75f,
            .statistics = statistics.data()};
  }

  double reference() const {
    double loss = 0.0;
    for (std::size_t row = 0; row < rows; ++row) {
      double sum = 0.0;
      for (std::size_t i = 0; i < classes; ++i) sum += std::exp(wide_logits[row * classes + i]);
      const double logit = wide_logits[row * classes + static_cast<std::size_t>(labels[row])];
      loss += (weights.empty() ? 1.0 : static_cast<double>(weights[row])) * (std::log(sum) - logit);
    }
    return loss / 1.75;
  }

  std::size_t rows;
  std::size_t classes;
  std::vector<float> logits;
  std::vector<std::int32_t> labels;
  std::vector<float> weights;
  std::vector<float> statistics;
  std::vector<double> wide_logits = widened(logits);
};

TEST_CASE("linear_forward_is_the_formula_with_and_without_bias") {
  Stream stream = immediate_stream();
  for (const LinearSizes& s : linear_sizes) {
    LinearCase c(s);
    std::vector<float> y(s.batch * s.out, unset);
    linear_forward<float>(stream, {.x = matrix(std::as_const(c.x), s.batch, s.in),
                                   .weight = matrix(std::as_const(c.w), s.out, s.in),
                                   .bias = c.b.data(),
                                   .y = matrix(y, s.batch, s.out)});
    check_elements(y, c.reference());
    std::fill(y.begin(), y.end(), unset);
    std::fill(c.wide_b.begin(), c.wide_b.end(), 0.0);
    linear_forward<float>(stream, {.x = matrix(std::as_const(c.x), s.batch, s.in),
                                   .weight = matrix(std::as_const(c.w), s.out, s.in),
                                   .y = matrix(y, s.batch, s.out)});
    check_elements(y, c.reference());
  }
  stream.synchronize();
}

TEST_CASE("a_residual_is_added_to_the_rounded_result") {
  Stream stream = immediate_stream();
  for (const LinearSizes& size : linear_sizes) {
    const LinearCase c(size);
    const std::vector<float> residual = random_floats(size.batch * size.out, 5);
    std::vector<float> y(size.batch * size.out, unset), sum(size.batch * size.out, unset);
    LinearForward<float> forward{.x = matrix(c.x, size.batch, size.in),
                                 .weight = matrix(c.w, size.out, size.in),
                                 .bias = c.b.data(),
                                 .y = matrix(y, size.batch, size.out)};
    linear_forward(stream, forward);
    forward.y = matrix(sum, size.batch, size.out);
    forward.residual = matrix(residual, size.batch, size.out);
    linear_forward(stream, forward);
    for (std::size_t i = 0; i < y.size(); ++i) CHECK(sum[i] == y[i] + residual[i]);
    forward.gelu = matrix(y, size.batch, size.out);
    CHECK_THROWS_WITH_AS(linear_forward(stream, forward), doctest::Contains("gelu and a residual"), UsageError);
  }
}

TEST_CASE("relu_keeps_what_is_positive_and_its_gradient_follows") {
  Stream stream = immediate_stream();
  for (const std::size_t count : std::vector<std::size_t>{0, 1, 37}) {
    std::vector<float> x = random_floats(count, 6);
    if (count > 2) x[1] = 0.0f;
    const std::vector<float> dy = random_floats(count, 7);
    std::vector<float> y(count, unset);
    std::vector<float> dx(count, unset);
    relu_forward<float>(stream, matrix(std::as_const(x), 1, count), matrix(y, 1, count));
    relu_backward<float>(stream, matrix(std::as_const(y), 1, count), matrix(dy, 1, count), matrix(dx, 1, count));
    for (std::size_t i = 0; i < count; ++i) {
      CHECK(y[i] == std::max(x[i], 0.0f));
      CHECK(dx[i] == (x[i] > 0.0f ? dy[i] : 0.0f));
    }
    relu_forward<float>(stream, matrix(std::as_const(x), 1, count), matrix(x, 1, count));  // in place
    CHECK(x == y);
  }
  std::vector<float> x = {unset};
  relu_forward<float>(stream, matrix(std::as_const(x), 1, 1), matrix(x, 1, 1));
  CHECK(std::isnan(x[0]));
  stream.synchronize();
}

TEST_CASE("gelu_is_its_formula_and_its_gradient_the_central_difference") {
  Stream stream = immediate_stream();
  for (const std::size_t count : std::vector<std::size_t>{0, 1, 101}) {
    const std::vector<float> x = scaled(random_floats(count, 8), 4.0f);
    std::vector<float> dy = random_floats(count, 9);
    std::vector<float> y(count, unset);
    gelu_forward<float>(stream, matrix(x, 1, count), matrix(y, 1, count));
    std::vector<double> wide_x = widened(x);
    const std::vector<double> expected = gelu_reference(wide_x);
    for (std::size_t i = 0; i < count; ++i) CHECK(std::abs(static_cast<double>(y[i]) - expected[i]) < 2e-6);
    const std::vector<double> wide_dy = widened(dy);
    const std::vector<double> gradient = numeric_gradient(wide_x, [&] { return dot(gelu_reference(wide_x), wide_dy); });
    gelu_backward<float>(stream, matrix(x, 1, count), matrix(std::as_const(dy), 1, count),
                         matrix(dy, 1, count));  // in place
    for (std::size_t i = 0; i < count; ++i) CHECK(std::abs(static_cast<double>(dy[i]) - gradient[i]) < 2e-6);
  }
  stream.synchronize();
}

TEST_CASE("cross_entropy_and_its_gradient_are_those_of_the_formula") {
  Stream stream = immediate_stream();
  for (const std::size_t rows : std::vector<std::size_t>{0, 1, 5, 23}) {
    for (const std::size_t classes : std::vector<std::size_t>{1, 2, 13}) {
      for (const bool weighted : {false, true}) {
        CrossEntropyCase c(rows, classes, weighted);
        float loss = unset;
        const float loss_scale = 8.0f;
        cross_entropy_forward<float>(stream, c.operands(), &loss);
        CHECK(std::abs(static_cast<double>(loss) - c.reference()) <= 1e-5 * (1.0 + c.reference()));
        std::vector<float> gradient(rows * classes, unset);
        cross_entropy_backward<float>(stream, c.operands(), &loss_scale, matrix(gradient, rows, classes));
        std::vector<double> expected = numeric_gradient(c.wide_logits, [&] { return 8.0 * c.reference(); });
        for (std::size_t i = 0; i < gradient.size(); ++i) {
          CHECK(std::abs(static_cast<double>(gradient[i]) - expected[i]) < 1e-4);
        }
        CrossEntropyCase at_once = c;
        float loss_at_once = unset;
        cross_entropy_at_once<float>(stream, at_once.operands(), &loss_at_once, &loss_scale,
                                     matrix(at_once.logits, rows, classes));
        CHECK(loss_at_once == loss);
        CHECK(at_once.logits == gradient);
        cross_entropy_backward<float>(stream, c.operands(), &loss_scale, matrix(c.logits, rows, classes));  // in place
        CHECK(c.logits == gradient);
      }
    }
  }
  stream.synchronize();
}

TEST_CASE("large_logits_do_not_overflow_the_cross_entropy") {
  Stream stream = immediate_stream();
  const std::vector<float> logits = {1000.0f, -1000.0f, 3e38f, -3e38f};
  const std::vector<std::int32_t> labels = {0, 0};
  std::vector<float> statistics(4);
  const CrossEntropyRows<float> rows{
      .logits = matrix(logits, 2, 2), .labels = labels.data(), .statistics = statistics.data()};
  float loss = unset;
  cross_entropy_forward<float>(stream, rows, &loss);
  CHECK(loss == 0.0f);
  stream.synchronize();
}

TEST_CASE("rows_of_weight_zero_count_nothing_whatever_they_hold") {
  Stream stream = immediate_stream();
  CrossEntropyCase c(5, 3, true);
  float clean = unset;
  cross_entropy_forward<float>(stream, c.operands(), &clean);
  std::vector<float> clean_gradient(15);
  const float one = 1.0f;
  cross_entropy_backward<float>(stream, c.operands(), &one, matrix(clean_gradient, 5, 3));
  for (const std::size_t row : std::vector<std::size_t>{1, 4}) {  // the rows of weight 0
    c.labels[row] = -77;
    for (std::size_t i = 0; i < 3; ++i) c.logits[row * 3 + i] = unset;
  }
  float dirty = unset;
  cross_entropy_forward<float>(stream, c.operands(), &dirty);
  CHECK(dirty == clean);
  std::vector<float> gradient(15, unset);
  cross_entropy_backward<float>(stream, c.operands(), &one, matrix(gradient, 5, 3));
  CHECK(gradient == clean_gradient);
  stream.synchronize();
}

TEST_CASE("a_label_out_of_range_is_an_error_of_the_stream") {
  for (const std::int32_t label : {-1, 3}) {
    Stream stream = immediate_stream();
    CrossEntropyCase c(2, 3, false);
    c.labels[1] = label;
    float loss = 0.0f;
    cross_entropy_forward<float>(stream, c.operands(), &loss);
    const std::string expected =
        "cross entropy: the label of row 1 is " + std::to_string(label) + ", but there are 3 classes";
    CHECK_THROWS_WITH_AS(stream.synchronize(), expected.c_str(), UsageError);
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
  const float nan = std::numeric_limits<float>::quiet_NaN();
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

TEST_CASE("smoothed_labels_are_a_mixture_of_the_label_and_all_classes") {
  Stream stream = immediate_stream();
  CrossEntropyCase c(5, 7, true);
  c.statistics.resize(cross_entropy_statistics(5, 0.1f));
  auto rows = c.operands();
  const double sharp = c.reference();
  rows.smoothing = 0.1f;
  double expected = 0.9 * sharp;
  for (std::int32_t label = 0; label < 7; ++label) {  // the mean over what the loss would be for each label
    std::fill(c.labels.begin(), c.labels.end(), label);
    expected += 0.1 / 7 * c.reference();
  }
  c.labels = CrossEntropyCase(5, 7, true).labels;
  rows.labels = c.labels.data();
  float loss = 0.0f;
  cross_entropy_forward<float>(stream, rows, &loss);
  CHECK(static_cast<double>(loss) == doctest::Approx(expected).epsilon(1e-5));
  rows.smoothing = 1.5f;
  CHECK_THROWS_WITH_AS(cross_entropy_forward<float>(stream, rows, &loss),
                       "cross entropy: smoothing must be 0 to 1, but is 1.5", UsageError);
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
}

TEST_CASE("on_a_queued_stream_the_host_runs_ahead_and_bits_stay_the_same") {
  const LinearSizes s{13, 17, 7};
  const LinearCase c(s);
  const auto step = [&](Stream& stream) {
    std::vector<float> y(s.batch * s.out, unset);
    std::vector<float> dw(s.out * s.in, unset);
    std::vector<float> db(s.out, unset);
    std::vector<float> statistics(2 * s.batch);
    const std::vector<std::int32_t> labels(s.batch, 3);
    float loss = unset;
    const float one = 1.0f;
    {  // what describes the operations is gone before they run
      const CrossEntropyRows<float> rows{.logits = matrix(y, s.batch, s.out),
                                         .labels = labels.data(),
                                         .denominator = 13.0f,
                                         .statistics = statistics.data()};
      linear_forward<float>(stream, {.x = matrix(c.x, s.batch, s.in),
                                     .weight = matrix(c.w, s.out, s.in),
                                     .bias = c.b.data(),
                                     .y = matrix(y, s.batch, s.out)});
      relu_forward<float>(stream, matrix(y, s.batch, s.out), matrix(y, s.batch, s.out));
      gelu_forward<float>(stream, matrix(y, s.batch, s.out), matrix(y, s.batch, s.out));
      cross_entropy_forward<float>(stream, rows, &loss);
      cross_entropy_backward<float>(stream, rows, &one, matrix(y, s.batch, s.out));
      linear_backward<float>(stream, {.x = matrix(c.x, s.batch, s.in),
                                      .weight = matrix(c.w, s.out, s.in),
                                      .dy = matrix(y, s.batch, s.out),
                                      .dx = {},
                                      .dweight = dw.data(),
                                      .dbias = db.data()});
    }
    stream.synchronize();
    dw.insert(dw.end(), db.begin(), db.end());
    dw.push_back(loss);
    return dw;
  };
  Stream immediate = immediate_stream();
  const std::vector<float> expected = step(immediate);
  for (std::uint64_t seed = 0; seed < 5; ++seed) {
    Stream queued(Device::cpu(), {.name = "compute", .delay_seed = seed});
    CHECK(step(queued) == expected);
  }
}

TEST_CASE("layer_functions_allocate_nothing") {
  Stream stream = immediate_stream();
  const LinearSizes s{13, 17, 7};
  const LinearCase c(s);
  std::vector<float> y(s.batch * s.out);
  std::vector<float> statistics(2 * s.batch);
  const std::vector<std::int32_t> labels(s.batch, 3);
  std::vector<float> dx(s.batch * s.in), dw(s.out * s.in), db(s.out);
  float loss = 0.0f;
  const std::size_t before = allocations_so_far();
  for (int round = 0; round < 3; ++round) {
    linear_forward<float>(stream, {.x = matrix(c.x, s.batch, s.in),
                                   .weight = matrix(c.w, s.out, s.in),
                                   .bias = c.b.data(),
                                   .y = matrix(y, s.batch, s.out)});
    relu_forward<float>(stream, matrix(std::as_const(y), s.batch, s.out), matrix(y, s.batch, s.out));
    gelu_forward<float>(stream, matrix(std::as_const(y), s.batch, s.out), matrix(y, s.batch, s.out));
    const CrossEntropyRows<float> rows{
        .logits = matrix(std::as_const(y), s.batch, s.out), .labels = labels.data(), .statistics = statistics.data()};
    cross_entropy_forward<float>(stream, rows, &loss);
    cross_entropy_backward<float>(stream, rows, &loss, matrix(y, s.batch, s.out));
    linear_backward<float>(stream, {.x = matrix(c.x, s.batch, s.in),
                                    .weight = matrix(c.w, s.out, s.in),
                                    .dy = matrix(std::as_const(y), s.batch, s.out),
                                    .dx = matrix(dx, s.batch, s.in),
                                    .dweight = dw.data(),
                                    .dbias = db.data()});
  }
  CHECK(allocations_so_far() == before);
  stream.synchronize();
}

}  // namespace layers_test
