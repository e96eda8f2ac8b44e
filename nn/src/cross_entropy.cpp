// Softmax and cross entropy: the loops are in rows/exponential_lanes.hpp. Sums over rows run in fp64, from first to
// last.
#include "tessera/nn/cross_entropy.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "src/cuda/cuda_layers.hpp"
#include "src/exported.hpp"
#include "src/operation.hpp"
#include "src/rows/active_rows.hpp"
#include "src/shared_rows.hpp"
#include "tessera/base/error.hpp"

namespace tessera::nn {

namespace {

template <typename T>
float weight_of(const CrossEntropyRows<T>& rows, std::size_t row) {
  return rows.weights == nullptr ? 1.0f : rows.weights[row];
}

template <typename T>
std::size_t label_of(const CrossEntropyRows<T>& rows, std::size_t row) {
  const std::int32_t label = rows.labels[row];
  const std::size_t classes = rows.all_classes == 0 ? rows.logits.columns : rows.all_classes;
  if (label < 0 || static_cast<std::size_t>(label) >= classes) {
    throw UsageError(
        fmt::format("cross entropy: the label of row {} is {}, but there are {} classes", row, label, classes));
  }
  return static_cast<std::size_t>(label) - rows.first_class;  // beyond the columns where another slice has it
}

template <typename T>
const T* logits_of(const CrossEntropyRows<T>& rows, std::size_t row) {
  return rows.logits.data + row * rows.logits.columns;
}

// How many logits stand before the label's when they are sorted: larger ones, equal ones before it, and NaN.
template <typename T>
std::size_t place_of(const T* logits, std::size_t label, std::size_t classes) {
  const auto at_label = load(logits[label]);
  const auto before = [&](const T& logit) { return !(load(logit) < at_label || load(logit) == at_label); };
  const auto up_to_label = [&](const T& logit) { return !(load(logit) < at_label); };
  return static_cast<std::size_t>(std::count_if(logits, logits + label, up_to_label) +
                                  std::count_if(logits + label + 1, logits + classes, before));
}

template <typename T>
double mean_of(const T* logits, std::size_t classes) {
  double sum = 0.0;
  for (std::size_t i = 0; i < classes; ++i) sum += static_cast<double>(load(logits[i]));
  return sum / static_cast<double>(classes);
}

template <typename T, typename Function>
void in_shares_of_rows(const CrossEntropyRows<T>& rows, const Function& function) {
  const auto shares = shares_of_rows(rows.logits.rows, rows.logits.columns);
  parallel::in_shares(shares, [&](std::size_t begin, std::size_t end, std::size_t) {
    for (std::size_t row = begin; row < end; ++row) function(row);
  });
}

// -log softmax(logits)[label], leaving what backward needs in `statistics`.
template <typename T>
double row_loss(const CrossEntropyRows<T>& rows, std::size_t row, const RowTable& run) {
  const T* logits = logits_of(rows, row);
  const std::size_t label = label_of(rows, row);
  double largest = 0.0;
  double sum = 0.0;
  run.softmax_sum({format_of<T>, logits, rows.logits.columns, &largest, &sum});
  rows.statistics[2 * row] = static_cast<Arithmetic<T>>(largest);
  rows.statistics[2 * row + 1] = static_cast<Arithmetic<T>>(sum);
  const auto of_label = static_cast<double>(load(logits[label]));
  if (rows.smoothing == 0.0f) return std::log(sum) + largest - of_label;
  const auto smoothing = static_cast<double>(rows.smoothing);
  return std::log(sum) + largest - (1.0 - smoothing) * of_label - smoothing * mean_of(logits, rows.logits.columns);
}

// The sum over rows, from first to last, of what function(row) is, which may be formed in any order; of rows of weight
// 0 there is none, but without_weight(row) is called.
template <typename T, typename Function, typename Other>
double sum_over_rows(const CrossEntropyRows<T>& rows, const Function& function, const Other& without_weight) {
  thread_local std::vector<double> values;  // keeps its memory for the next step
  values.assign(rows.logits.rows, 0.0);
  double* const value_of = values.data();
  in_shares_of_rows(rows, [&](std::size_t row) {
    const float weight = weight_of(rows, row);
    if (weight == 0.0f) return without_weight(row);
    value_of[row] = static_cast<double>(weight) * function(row);
  });
  return std::accumulate(values.begin(), values.end(), 0.0);
}

void nothing_of(std::size_t) {}

template <typename T>
void forward_now(const CrossEntropyRows<T>& rows, Arithmetic<T>* loss, const RowTable& run) {
  const double sum = sum_over_rows(
      rows, [&](std::size_t row) { return row_loss(rows, row, run); }, nothing_of);
  *loss = static_cast<Arithmetic<T>>(sum / static_cast<double>(rows.denominator));
}

template <typename T>
void slice_now(const CrossEntropyRows<T>& rows, Arithmetic<T>* brought, const RowTable& run) {
  const std::size_t batch = rows.logits.rows;
  in_shares_of_rows(rows, [&](std::size_t row) {
    double largest = 0.0, sum = 0.0, of_label = 0.0;
    if (weight_of(rows, row) != 0.0f) {
      const T* logits = logits_of(rows, row);
      const std::size_t label = label_of(rows, row);
      run.softmax_sum({format_of<T>, logits, rows.logits.columns, &largest, &sum});
      if (label < rows.logits.columns) of_label = static_cast<double>(load(logits[label]));
    }
    brought[row] = static_cast<Arithmetic<T>>(largest);
    brought[batch + row] = static_cast<Arithmetic<T>>(sum);
    brought[2 * batch + row] = static_cast<Arithmetic<T>>(of_label);
  });
}

template <typename T>
void slices_now(const CrossEntropyRows<T>& rows, const BroughtBySlices<Arithmetic<T>>& brought, Arithmetic<T>* loss) {
  const std::size_t batch = rows.logits.rows;
  const auto of_row = [&](std::size_t row) {
    const auto at = [&](std::size_t slice, std::size_t number) {
      return static_cast<double>(brought.first[slice * brought.stride + number * batch + row]);
    };
    double largest = at(0, 0), sum = 0.0, of_label = 0.0;
    for (std::size_t slice = 1; slice < brought.count; ++slice) largest = std::max(largest, at(slice, 0));
    for (std::size_t slice = 0; slice < brought.count; ++slice) {
      sum += at(slice, 1) * std::exp(at(slice, 0) - largest);
      of_label += at(slice, 2);
    }
    rows.statistics[2 * row] = static_cast<Arithmetic<T>>(largest);
    rows.statistics[2 * row + 1] = static_cast<Arithmetic<T>>(sum);
    return std::log(sum) + largest - of_label;
  };
  *loss = static_cast<Arithmetic<T>>(sum_over_rows(rows, of_row, nothing_of) / static_cast<double>(rows.denominator));
}

// The label's gradient is taken first: the gradients may replace the logits.
template <typename T>
void row_gradient(const CrossEntropyRows<T>& rows, std::size_t row, float loss_scale, T* gradient,
                  const RowTable& run) {
  const double factor = static_cast<double>(weight_of(rows, row)) / static_cast<double>(rows.denominator) *
                        static_cast<double>(loss_scale);
  const T* logits = logits_of(rows, row);
  const std::size_t label = label_of(rows, row);
  const auto largest = static_cast<double>(rows.statistics[2 * row]);
  const auto sum = static_cast<double>(rows.statistics[2 * row + 1]);
  const bool is_here = label < rows.logits.columns;
  const double probability = is_here ? std::exp(static_cast<double>(load(logits[label])) - largest) / sum : 0.0;
  const auto smoothing = static_cast<double>(rows.smoothing);
  const double everywhere = smoothing / static_cast<double>(rows.logits.columns);
  run.softmax_scaled({format_of<T>, logits, gradient, rows.logits.columns, largest, factor / sum, everywhere * factor});
  if (!is_here) return;
  gradient[label] = store<T>(static_cast<Arithmetic<T>>((probability - (1.0 - smoothing) - everywhere) * factor));
}

// The rows' gradients, one by one.
template <typename T>
struct GradientRows {
  const CrossEntropyRows<T>& rows;
  float loss_scale;
  T* dlogits;
  const RowTable& run;

  T* at(std::size_t row) const { return dlogits + row * rows.logits.columns; }
  void form(std::size_t row) const { row_gradient(rows, row, loss_scale, at(row), run); }
  void clear(std::size_t row) const { std::fill_n(at(row), rows.logits.columns, T{}); }
};

template <typename T>
void backward_now(const GradientRows<T>& gradient) {
  in_shares_of_rows(gradient.rows, [&](std::size_t row) {
    weight_of(gradient.rows, row) == 0.0f ? gradient.clear(row) : gradient.form(row);
  });
}

template <typename T>
void at_once_now(const GradientRows<T>& gradient, Arithmetic<T>* loss) {
  const auto loss_and_gradient = [&](std::size_t row) {
    const double loss_of_row = row_loss(gradient.rows, row, gradient.run);
    gradient.form(row);
    return loss_of_row;
  };
  const double sum = sum_over_rows(gradient.rows, loss_and_gradient, [&](std::size_t row) { gradient.clear(row); });
  *loss = static_cast<Arithmetic<T>>(sum / static_cast<double>(gradient.rows.denominator));
}

template <typename T>
void check(const Stream& stream, const CrossEntropyRows<T>& rows) {
  if (rows.stride != 0 && !on_cuda(stream)) {
    throw UsageError(
        fmt::format("cross entropy: rows {} elements apart, but only CUDA devices take rows with gaps", rows.stride));
  }
  if (!(rows.denominator > 0.0f)) {
    throw UsageError(fmt::format("cross entropy: denominator must be above 0, but is {}", rows.denominator));
  }
  if (!(rows.smoothing >= 0.0f && rows.smoothing <= 1.0f)) {
    throw UsageError(fmt::format("cross entropy: smoothing must be 0 to 1, but is {}", rows.smoothing));
  }
  if (rows.logits.rows > 0 && rows.logits.columns == 0) throw UsageError("cross entropy: logits must have a class");
}

template <typename T>
cuda::CrossEntropyArguments cuda_rows(const CrossEntropyRows<T>& rows) {
  return {.format = format_of<T>,
          .logits = rows.logits.data,
          .labels = rows.labels,
          .weights = rows.weights,
          .denominator = rows.denominator,
          .statistics = reinterpret_cast<float*>(rows.statistics),
          .marks = rows.marks,
          .smoothing = rows.smoothing,
          .batch = rows.logits.rows,
          .classes = rows.logits.columns,
          .stride = rows.stride == 0 ? rows.logits.columns : rows.stride,
          .all_classes = rows.all_classes == 0 ? rows.logits.columns : rows.all_classes,
          .first_class = rows.first_class};
}

void require_as_many(std::size_t rows, const Targets& targets) {
  if (targets.labels.size() == rows && (targets.weights.empty() || targets.weights.size() == rows)) return;
  throw UsageError(fmt::format("cross entropy: {} rows of logits, but {} labels and {} weights", rows,
                               targets.labels.size(), targets.weights.size()));
}

}  // namespace

template <Element T>
void cross_entropy_forward(Stream& stream, const CrossEntropyRows<T>& rows, Arithmetic<T>* loss) {
  check(stream, rows);
  if (on_cuda(stream)) {
    return issue<T>(stream, "cross entropy", [of = cuda_rows(rows), loss](void* native) {
      cuda::cross_entropy_forward(native, of, reinterpret_cast<float*>(loss));
    });
  }
  stream.submit([rows, loss, &run = active_rows()] { forward_now(rows, loss, run); });
}

template <Element T>
void cross_entropy_backward(Stream& stream, const CrossEntropyRows<T>& rows, const float* loss_scale,
                            MatrixView<T> dlogits) {
  check(stream, rows);
  require_shape("cross entropy: dlogits", dlogits, rows.logits.rows, rows.logits.columns);
  if (on_cuda(stream)) {
    return issue<T>(stream, "cross entropy", [of = cuda_rows(rows), loss_scale, to = dlogits.data](void* native) {
      cuda::cross_entropy_backward(native, of, {loss_scale, to});
    });
  }
  stream.submit([rows, loss_scale, dlogits, &run = active_rows()] {
    backward_now(GradientRows<T>{rows, *loss_scale, dlogits.data, run});
  });
}

template <Element T>
void cross_entropy_at_once(Stream& stream, const CrossEntropyRows<T>& rows, Arithmetic<T>* loss,
                           const float* loss_scale, MatrixView<T> dlogits) {
  check(stream, rows);
  require_shape("cross entropy: dlogits", dlogits, rows.logits.rows, rows.logits.columns);
  if (on_cuda(stream)) {
    cuda::CrossEntropyArguments of = cuda_rows(rows);
    of.label_logits = of.statistics + cross_entropy_statistics(of.batch, of.smoothing);
    return issue<T>(stream, "cross entropy", [of, loss, loss_scale, to = dlogits.data](void* native) {
      cuda::cross_entropy_at_once(native, of, reinterpret_cast<float*>(loss), {loss_scale, to});
    });
  }
  stream.submit([rows, loss, loss_scale, dlogits, &run = active_rows()] {
    at_once_now(GradientRows<T>{rows, *loss_scale, dlogits.data, run}, loss);
  });
}

template <Element T>
void cross_entropy_of_slice(Stream& stream, const CrossEntropyRows<T>& rows, Arithmetic<T>* brought) {
  check(stream, rows);
  if (rows.smoothing != 0.0f) throw UsageError("cross entropy: slices of classes have no smoothing");
  if (on_cuda(stream)) {
    return issue<T>(stream, "cross entropy", [of = cuda_rows(rows), brought](void* native) {
      cuda::cross_entropy_of_slice(native, of, reinterpret_cast<float*>(brought));
    });
  }
  stream.submit([rows, brought, &run = active_rows()] { slice_now(rows, brought, run); });
}

template <Element T>
void cross_entropy_of_slices(Stream& stream, const CrossEntropyRows<T>& rows,
                             const BroughtBySlices<Arithmetic<T>>& brought, Arithmetic<T>* loss) {
  check(stream, rows);
  if (on_cuda(stream)) {
    return issue<T>(stream, "cross entropy", [of = cuda_rows(rows), brought, loss](void* native) {
      cuda::cross_entropy_of_slices(native, of,
                                    {reinterpret_cast<const float*>(brought.first), brought.stride, brought.count},
                                    reinterpret_cast<float*>(loss));
    });
  }
  stream.submit([rows, brought, loss] { slices_now(rows, brought, loss); });
}

template <Element T>
void count_correct(Stream& stream, const CrossEntropyRows<T>& rows, double* correct, std::size_t among) {
  check(stream, rows);
  if (on_cuda(stream)) {
    if (rows.marks == nullptr && rows.logits.rows > 0) {
      throw UsageError("cross entropy: count_correct() on a CUDA device needs `marks`, room for a float per row");
    }
    return issue<T>(stream, "cross entropy", [of = cuda_rows(rows), correct, among](void* native) {
      cuda::count_correct(native, of, correct, among);
    });
  }
  stream.submit([rows, correct, among] {
    const auto is_correct = [&](std::size_t row) {
      return place_of(logits_of(rows, row), label_of(rows, row), rows.logits.columns) < among ? 1.0 : 0.0;
    };
    *correct = sum_over_rows(rows, is_correct, nothing_of);
  });
}

template <Element T>
CrossEntropyRows<T> CrossEntropy<T>::rows_of(Window& window, MatrixView<const T> logits, const Targets& targets,
                                             std::size_t stride) const {
  if (window.computes()) require_as_many(logits.rows, targets);
  return {.logits = logits,
          .labels = targets.labels.data(),
          .weights = targets.weights.empty() ? nullptr : targets.weights.data(),
          .denominator = static_cast<float>(std::max<std::size_t>(1, logits.rows)),
          .smoothing = smoothing_,
          .stride = stride};
}

template <Element T>
typename CrossEntropy<T>::Saved CrossEntropy<T>::forward(Window& window, ActivationStack& stack,
                                                         MatrixView<const T> logits, const Targets& targets,
                                                         Arithmetic<T>* loss, std::size_t stride) {
  CrossEntropyRows<T> rows = rows_of(window, logits, targets, stride);
  rows.statistics = stack.push<Arithmetic<T>>(cross_entropy_statistics(logits.rows, smoothing_)).data();
  enqueue(window, cross_entropy_forward<T>, rows, loss);
  return {rows};
}

template <Element T>
std::span<const Arithmetic<T>> CrossEntropy<T>::of_slice(Window& window, ActivationStack& stack, Saved& saved,
                                                         MatrixView<const T> logits, const Targets& targets,
                                                         std::size_t stride, const SliceOfClasses& slice) {
  saved.rows = rows_of(window, logits, targets, stride);
  saved.rows.statistics = stack.push<Arithmetic<T>>(cross_entropy_statistics(logits.rows, smoothing_)).data();
  saved.rows.all_classes = slice.all;
  saved.rows.first_class = slice.first;
  const std::span<Arithmetic<T>> brought = stack.push<Arithmetic<T>>(3 * logits.rows);
  enqueue(window, cross_entropy_of_slice<T>, saved.rows, brought.data());
  return brought;
}

template <Element T>
void CrossEntropy<T>::backward(Window& window, ActivationStack&, const Saved& saved, MatrixView<T> dlogits) {
  enqueue(window, cross_entropy_backward<T>, saved.rows, window.loss_scale(), dlogits);
}

template <Element T>
void CrossEntropy<T>::at_once(Window& window, ActivationStack& stack, MatrixView<T> logits, const Targets& targets,
                              Arithmetic<T>* loss, std::size_t stride) {
  const ScratchScope scratch(stack);
  CrossEntropyRows<T> rows = rows_of(window, logits, targets, stride);
  const std::size_t room = cross_entropy_at_once_statistics(logits.rows, smoothing_, device_of(window, stack));
  rows.statistics = stack.push<Arithmetic<T>>(room).data();
  enqueue(window, cross_entropy_at_once<T>, rows, loss, window.loss_scale(), logits);
}

#define TESSERA_CROSS_ENTROPY(T)                                                                                 \
  template TESSERA_EXPORTED void cross_entropy_forward(Stream&, const CrossEntropyRows<T>&, Arithmetic<T>*);     \
  template TESSERA_EXPORTED void cross_entropy_backward(Stream&, const CrossEntropyRows<T>&, const float*,       \
                                                        MatrixView<T>);                                          \
  template TESSERA_EXPORTED void cross_entropy_at_once(Stream&, const CrossEntropyRows<T>&, Arithmetic<T>*,      \
                                                       const float*, MatrixView<T>);                             \
  template TESSERA_EXPORTED void cross_entropy_of_slice(Stream&, const CrossEntropyRows<T>&, Arithmetic<T>*);    \
  template TESSERA_EXPORTED void cross_entropy_of_slices(Stream&, const CrossEntropyRows<T>&,                    \
                                                         const BroughtBySlices<Arithmetic<T>>&, Arithmetic<T>*); \
  template TESSERA_EXPORTED void count_correct(Stream&, const CrossEntropyRows<T>&, double*, std::size_t);       \
  template class CrossEntropy<T>;
TESSERA_FOR_EACH_ELEMENT(TESSERA_CROSS_ENTROPY)

}  // namespace tessera::nn
