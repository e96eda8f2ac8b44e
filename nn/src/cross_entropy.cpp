// Softmax and cross entropy. Sums run in fp64, from first to last.
#include "tessera/nn/cross_entropy.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "src/shapes.hpp"
#include "tessera/base/error.hpp"

namespace tessera::nn {

namespace {

float weight_of(const CrossEntropyRows& rows, std::size_t row) {
  return rows.weights == nullptr ? 1.0f : rows.weights[row];
}

std::size_t label_of(const CrossEntropyRows& rows, std::size_t row) {
  const std::int32_t label = rows.labels[row];
  if (label < 0 || static_cast<std::size_t>(label) >= rows.logits.columns) {
    throw UsageError(fmt::format("cross entropy: the label of row {} is {}, but there are {} classes", row, label,
                                 rows.logits.columns));
  }
  return static_cast<std::size_t>(label);
}

const float* logits_of(const CrossEntropyRows& rows, std::size_t row) {
  return rows.logits.data + row * rows.logits.columns;
}

// -log softmax(logits)[label], leaving what backward needs in `statistics`.
double row_loss(const CrossEntropyRows& rows, std::size_t row) {
  const float* logits = logits_of(rows, row);
  const std::size_t label = label_of(rows, row);
  const float largest = *std::max_element(logits, logits + rows.logits.columns);
  double sum = 0.0;
  for (std::size_t i = 0; i < rows.logits.columns; ++i) sum += static_cast<double>(std::exp(logits[i] - largest));
  rows.statistics[2 * row] = largest;
  rows.statistics[2 * row + 1] = static_cast<float>(sum);
  return std::log(sum) + static_cast<double>(largest) - static_cast<double>(logits[label]);
}

void forward_now(const CrossEntropyRows& rows, float* loss) {
  double sum = 0.0;
  for (std::size_t row = 0; row < rows.logits.rows; ++row) {
    const float weight = weight_of(rows, row);
    if (weight != 0.0f) sum += static_cast<double>(weight) * row_loss(rows, row);
  }
  *loss = static_cast<float>(sum / static_cast<double>(rows.denominator));
}

void backward_now(const CrossEntropyRows& rows, float loss_scale, float* dlogits) {
  const std::size_t classes = rows.logits.columns;
  for (std::size_t row = 0; row < rows.logits.rows; ++row) {
    float* gradient = dlogits + row * classes;
    const float weight = weight_of(rows, row);
    if (weight == 0.0f) {
      std::fill_n(gradient, classes, 0.0f);
      continue;
    }
    const float* logits = logits_of(rows, row);
    const float largest = rows.statistics[2 * row];
    const float sum = rows.statistics[2 * row + 1];
    const float factor = weight / rows.denominator * loss_scale;
    const std::size_t label = label_of(rows, row);
    for (std::size_t i = 0; i < classes; ++i) {
      const float probability = std::exp(logits[i] - largest) / sum;
      gradient[i] = (i == label ? probability - 1.0f : probability) * factor;
    }
  }
}

void check(const CrossEntropyRows& rows) {
  if (!(rows.denominator > 0.0f)) {
    throw UsageError(fmt::format("cross entropy: denominator must be above 0, but is {}", rows.denominator));
  }
  if (rows.logits.rows > 0 && rows.logits.columns == 0) throw UsageError("cross entropy: logits must have a class");
}

}  // namespace

void cross_entropy_forward(Stream& stream, const CrossEntropyRows& rows, float* loss) {
  check(rows);
  stream.submit([rows, loss] { forward_now(rows, loss); });
}

void cross_entropy_backward(Stream& stream, const CrossEntropyRows& rows, const float* loss_scale, MatrixView dlogits) {
  check(rows);
  require_shape("cross entropy: dlogits", dlogits, rows.logits.rows, rows.logits.columns);
  stream.submit([rows, loss_scale, dlogits] { backward_now(rows, *loss_scale, dlogits.data); });
}

void count_correct(Stream& stream, const CrossEntropyRows& rows, double* correct) {
  check(rows);
  stream.submit([rows, correct] {
    double sum = 0.0;
    for (std::size_t row = 0; row < rows.logits.rows; ++row) {
      const float weight = weight_of(rows, row);
      if (weight == 0.0f) continue;
      const float* logits = logits_of(rows, row);
      const float* largest = std::max_element(logits, logits + rows.logits.columns);
      if (static_cast<std::size_t>(largest - logits) == label_of(rows, row)) sum += static_cast<double>(weight);
    }
    *correct = sum;
  });
}

void CrossEntropy::forward(Stream& stream, MatrixView logits, const Targets& targets, float* loss) {
  if (targets.labels.size() != logits.rows || (!targets.weights.empty() && targets.weights.size() != logits.rows)) {
    throw UsageError(fmt::format("cross entropy: {} rows of logits, but {} labels and {} weights", logits.rows,
                                 targets.labels.size(), targets.weights.size()));
  }
  logits_ = logits;
  rows_ = {.logits = logits,
           .labels = targets.labels.data(),
           .weights = targets.weights.empty() ? nullptr : targets.weights.data(),
           .denominator = static_cast<float>(std::max<std::size_t>(1, logits.rows)),
           .statistics = statistics_.reshape(stream, logits.rows, 2).data};
  cross_entropy_forward(stream, rows_, loss);
}

MatrixView CrossEntropy::backward(Stream& stream, const float* loss_scale) {
  cross_entropy_backward(stream, rows_, loss_scale, logits_);
  return logits_;
}

}  // namespace tessera::nn
