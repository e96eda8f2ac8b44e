// Batch normalisation: the loops over rows are in rows/batch_norm_lanes.hpp.
#include "tessera/vision/batch_norm.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "nn/src/exported.hpp"
#include "nn/src/operation.hpp"
#include "nn/src/rows/active_rows.hpp"
#include "nn/src/shared_rows.hpp"
#include "tessera/base/error.hpp"
#include "vision/src/cuda/kernels.hpp"
#include "vision/src/rows/image_rows.hpp"

namespace tessera::vision {

namespace {

// How rows are cut for sums: by the extents alone.
struct RowParts {
  RowParts(std::size_t rows_, std::size_t channels)
      : rows(rows_), count(std::clamp<std::size_t>(rows * std::max<std::size_t>(1, channels) >> 15, 1, 64)) {}
  std::size_t begin(std::size_t part) const { return rows * part / count; }

  std::size_t rows;
  std::size_t count;
};

// Scratch memory: the sums of all parts, then coefficients for each channel, then what this rank brings.
template <typename T>
struct BatchNormRoom {
  using Real = Arithmetic<T>;

  BatchNormRoom(std::size_t rows, std::size_t channels_) : channels(channels_), parts(rows, channels_) {}
  double* sums(float* scratch, std::size_t part) const {
    return reinterpret_cast<double*>(scratch) + part * 2 * channels;
  }
  Real* coefficients(float* scratch, std::size_t index) const {
    return reinterpret_cast<Real*>(sums(scratch, parts.count)) + index * channels;
  }
  double* brought(float* scratch) const { return reinterpret_cast<double*>(coefficients(scratch, 4)); }
  std::size_t floats() const {
    return ((parts.count * 2 * sizeof(double) + 4 * sizeof(Real)) * channels +
            sizeof(double) * batch_norm_values(channels)) /
           sizeof(float);
  }

  std::size_t channels;
  RowParts parts;
};

// The sums of all rows, in the first part's place.
template <typename T>
const double* sum_up(const BatchNormSums& whole, const BatchNormRoom<T>& room, float* scratch) {
  const std::size_t row_bytes = whole.channels * sizeof(T);
  const auto at_row = [&](const void* from, std::size_t row) -> const void* {
    return from == nullptr ? nullptr : static_cast<const std::byte*>(from) + row * row_bytes;
  };
  parallel::in_parts(room.parts.count, [&](std::size_t part, std::size_t) {
    BatchNormSums sums = whole;
    const std::size_t first = room.parts.begin(part);
    sums.x = at_row(whole.x, first);
    sums.dy = at_row(whole.dy, first);
    sums.y = at_row(whole.y, first);
    sums.rows = room.parts.begin(part + 1) - first;
    sums.sums = room.sums(scratch, part);
    active_image_rows().batch_norm_sums(sums);
  });
  double* const total = room.sums(scratch, 0);
  for (std::size_t part = 1; part < room.parts.count; ++part) {
    const double* const more = room.sums(scratch, part);
    for (std::size_t i = 0; i < 2 * room.channels; ++i) total[i] += more[i];
  }
  return total;
}

template <typename T>
void scale_rows(const BatchNormRows& whole) {
  const std::size_t row_bytes = whole.channels * sizeof(T);
  const auto at_row = [&](const void* from, std::size_t row) -> const void* {
    return from == nullptr ? nullptr : static_cast<const std::byte*>(from) + row * row_bytes;
  };
  parallel::in_shares(shares_of_rows(whole.rows, whole.channels), [&](std::size_t begin, std::size_t end, std::size_t) {
    BatchNormRows rows = whole;
    rows.x = at_row(whole.x, begin);
    rows.residual = at_row(whole.residual, begin);
    rows.dy = at_row(whole.dy, begin);
    rows.y = at_row(whole.y, begin);
    rows.to = static_cast<std::byte*>(whole.to) + begin * row_bytes;
    rows.rows = end - begin;
    active_image_rows().batch_norm_scale(rows);
  });
}

void move_running(float* running, double to, double momentum) {
  *running = static_cast<float>(static_cast<double>(*running) + momentum * (to - static_cast<double>(*running)));
}

// Sums are of differences from the first row: numbers near the mean, so that squares lose nothing.
template <typename T>
void moments_now(const BatchNormMoments<T>& of) {
  using Real = Arithmetic<T>;
  const std::size_t rows = of.x.rows;
  const std::size_t channels = of.x.columns;
  const BatchNormRoom<T> room(rows, channels);
  Real* const first = room.coefficients(of.scratch, 0);
  for (std::size_t c = 0; c < channels; ++c) first[c] = rows == 0 ? Real{} : load(of.x.data[c]);
  const double* const sums = sum_up<T>(
      {.format = format_of<T>, .x = of.x.data, .mean = first, .rows = rows, .channels = channels}, room, of.scratch);
  const auto count = static_cast<double>(std::max<std::size_t>(1, rows));
  of.moments[0] = static_cast<double>(rows);
  for (std::size_t c = 0; c < channels; ++c) {
    const double shift = sums[c] / count;
    of.moments[1 + c] = static_cast<double>(first[c]) + shift;
    of.moments[1 + channels + c] = std::max(0.0, sums[channels + c] - sums[c] * shift);
  }
}

// These are of one channel.
struct Moments {
  double count = 0;
  double mean = 0;
  double squares = 0;  // deviations'
};

Moments brought_moments(const double* brought, std::size_t channels, std::size_t channel) {
  return {brought[0], brought[1 + channel], brought[1 + channels + channel]};
}

// The moments are over the rows of all ranks, one rank added after the other.
Moments moments_of(const Contributions& all, std::size_t channels, std::size_t channel) {
  Moments sum;
  for (std::size_t rank = 0; rank < all.ranks(); ++rank) {
    const Moments more = brought_moments(all.of(rank), channels, channel);
    if (more.count == 0) continue;
    if (sum.count == 0) {
      sum = more;
      continue;
    }
    const double apart = more.mean - sum.mean;
    const double together = sum.count + more.count;
    sum.squares += more.squares + apart * apart * sum.count * more.count / together;
    sum.mean += apart * more.count / together;
    sum.count = together;
  }
  return sum;
}

void follow_channel(const BatchNormFollow& of, std::size_t channel, const Moments& moments) {
  if (moments.count == 0) return;
  move_running(of.running_mean + channel, moments.mean, of.momentum);
  move_running(of.running_variance + channel, moments.squares / std::max(1.0, moments.count - 1.0), of.momentum);
}

void follow_now(const BatchNormFollow& of) {
  for (std::size_t c = 0; c < of.channels; ++c) {
    if (!of.granules) {
      follow_channel(of, c, moments_of(of.moments, of.channels, c));
      continue;
    }
    for (std::size_t place = 0; place < of.moments.ranks(); ++place) {
      follow_channel(of, c, brought_moments(of.moments.of_place(place), of.channels, c));
    }
  }
}

template <typename T>
void batch_moments_now(const BatchNormForward<T>& of) {
  const std::size_t channels = of.x.columns;
  Contributions all = of.moments;
  if (all.first == nullptr) {
    double* const alone = BatchNormRoom<T>(of.x.rows, channels).brought(of.scratch);
    moments_now<T>({.x = of.x, .moments = alone, .scratch = of.scratch});
    all = {.first = alone, .values = batch_norm_values(channels)};
  }
  for (std::size_t c = 0; c < channels; ++c) {
    const Moments moments = moments_of(all, channels, c);
    of.mean[c] = static_cast<Arithmetic<T>>(moments.mean);
    of.inverse[c] =
        static_cast<Arithmetic<T>>(1.0 / std::sqrt(moments.squares / std::max(1.0, moments.count) + of.epsilon));
  }
  if (!of.update || of.running_mean == nullptr) return;
  follow_now({.channels = channels,
              .running_mean = of.running_mean,
              .running_variance = of.running_variance,
              .momentum = of.momentum,
              .moments = all});
}

template <typename T>
void running_moments_now(const BatchNormForward<T>& of) {
  for (std::size_t c = 0; c < of.x.columns; ++c) {
    of.mean[c] = static_cast<Arithmetic<T>>(of.running_mean[c]);
    const double variance = static_cast<double>(of.running_variance[c]);
    of.inverse[c] = static_cast<Arithmetic<T>>(1.0 / std::sqrt(variance + of.epsilon));
  }
}

template <typename T>
void forward_now(const BatchNormForward<T>& of) {
  const BatchNormRoom<T> room(of.x.rows, of.x.columns);
  of.evaluate ? running_moments_now(of) : batch_moments_now(of);
  Arithmetic<T>* const scale = room.coefficients(of.scratch, 0);
  Arithmetic<T>* const shift = room.coefficients(of.scratch, 1);
  for (std::size_t c = 0; c < of.x.columns; ++c) {
    scale[c] = of.inverse[c] * load(of.weight[c]);
    shift[c] = load(of.bias[c]);
  }
  scale_rows<T>({.format = format_of<T>,
                 .x = of.x.data,
                 .residual = of.residual,
                 .relu = of.relu,
                 .to = of.y.data,
                 .mean = of.mean,
                 .scale = scale,
                 .shift = shift,
                 .rows = of.x.rows,
                 .channels = of.x.columns});
}

template <typename T>
void store_gradient(T* gradient, double value, bool accumulate) {
  if (gradient == nullptr) return;
  const auto sum = static_cast<Arithmetic<T>>(value);
  *gradient = store<T>(accumulate ? load(*gradient) + sum : sum);
}

template <typename T>
void gradient_sums_now(const BatchNormGradientSums<T>& of) {
  const std::size_t channels = of.x.columns;
  const double* const sums = sum_up<T>({.format = format_of<T>,
                                        .x = of.x.data,
                                        .dy = of.dy.data,
                                        .y = of.relu_y,
                                        .mean = of.mean,
                                        .inverse = of.inverse,
                                        .rows = of.x.rows,
                                        .channels = channels},
                                       BatchNormRoom<T>(of.x.rows, channels), of.scratch);
  of.sums[0] = static_cast<double>(of.x.rows);
  std::copy(sums, sums + 2 * channels, of.sums + 1);
}

// In the order of ranks.
double sum_over_ranks(const Contributions& all, std::size_t value) {
  double sum = all.of(0)[value];
  for (std::size_t rank = 1; rank < all.ranks(); ++rank) sum += all.of(rank)[value];
  return sum;
}

// dweight and dbias are this rank's part of sums that the reduction of gradients forms.
template <typename T>
void backward_now(const BatchNormBackward<T>& of) {
  using Real = Arithmetic<T>;
  const std::size_t channels = of.x.columns;
  const BatchNormRoom<T> room(of.x.rows, channels);
  Contributions all = of.sums;
  const double* own = of.own_sums;
  if (all.first == nullptr) {
    double* const alone = room.brought(of.scratch);
    gradient_sums_now<T>({.x = of.x,
                          .mean = of.mean,
                          .inverse = of.inverse,
                          .dy = of.dy,
                          .relu_y = of.relu_y,
                          .sums = alone,
                          .scratch = of.scratch});
    all = {.first = alone, .values = batch_norm_values(channels)};
    own = alone;
  }
  Real* const scale = room.coefficients(of.scratch, 0);
  Real* const shift = room.coefficients(of.scratch, 1);
  Real* const slope = room.coefficients(of.scratch, 2);
  const double count = std::max(1.0, sum_over_ranks(all, 0));
  for (std::size_t c = 0; c < channels; ++c) {
    store_gradient(of.dbias == nullptr ? nullptr : of.dbias + c, own[1 + c], of.accumulate);
    store_gradient(of.dweight == nullptr ? nullptr : of.dweight + c, own[1 + channels + c], of.accumulate);
    scale[c] = of.inverse[c] * load(of.weight[c]);
    shift[c] = static_cast<Real>(sum_over_ranks(all, 1 + c) / count);
    slope[c] = static_cast<Real>(sum_over_ranks(all, 1 + channels + c) / count * static_cast<double>(of.inverse[c]));
  }
  if (of.dx.columns == 0) return;
  scale_rows<T>({.format = format_of<T>,
                 .x = of.x.data,
                 .dy = of.dy.data,
                 .y = of.relu_y,
                 .to = of.dx.data,
                 .mean = of.mean,
                 .scale = scale,
                 .shift = shift,
                 .slope = slope,
                 .rows = of.x.rows,
                 .channels = channels});
}

}  // namespace

// ---- on CUDA devices, which have no doubles ----

namespace {

double* cuda_scratch(float* scratch) { return reinterpret_cast<double*>(scratch); }

template <typename T>
cuda::BatchNormSumRows cuda_rows(const BatchNormMoments<T>& of) {
  return {.format = format_of<T>,
          .x = of.x.data,
          .to = of.moments,
          .rows = of.x.rows,
          .channels = of.x.columns,
          .scratch = cuda_scratch(of.scratch)};
}

template <typename T>
cuda::BatchNormSumRows cuda_rows(const BatchNormGradientSums<T>& of) {
  return {.format = format_of<T>,
          .x = of.x.data,
          .dy = of.dy.data,
          .relu_y = of.relu_y,
          .mean = of.mean,
          .inverse = of.inverse,
          .to = of.sums,
          .rows = of.x.rows,
          .channels = of.x.columns,
          .scratch = cuda_scratch(of.scratch)};
}

template <typename T>
cuda::BatchNormForwardRows cuda_rows(const BatchNormForward<T>& of) {
  return {.format = format_of<T>,
          .relu = of.relu,
          .evaluate = of.evaluate,
          .update = of.update,
          .x = of.x.data,
          .weight = of.weight,
          .bias = of.bias,
          .residual = of.residual,
          .y = of.y.data,
          .mean = of.mean,
          .inverse = of.inverse,
          .running_mean = of.running_mean,
          .running_variance = of.running_variance,
          .epsilon = of.epsilon,
          .momentum = of.momentum,
          .moments = of.moments,
          .rows = of.x.rows,
          .channels = of.x.columns,
          .scratch = cuda_scratch(of.scratch)};
}

template <typename T>
cuda::BatchNormBackwardRows cuda_rows(const BatchNormBackward<T>& of) {
  return {.format = format_of<T>,
          .accumulate = of.accumulate,
          .x = of.x.data,
          .weight = of.weight,
          .mean = of.mean,
          .inverse = of.inverse,
          .dy = of.dy.data,
          .relu_y = of.relu_y,
          .dx = of.dx.columns == 0 ? nullptr : of.dx.data,
          .dweight = of.dweight,
          .dbias = of.dbias,
          .sums = of.sums,
          .own_sums = of.own_sums,
          .rows = of.x.rows,
          .channels = of.x.columns,
          .scratch = cuda_scratch(of.scratch)};
}

// kernel(native, rows of the operation), in the stream's order.
template <typename T, typename Operation, typename Rows>
void issue_norm(Stream& stream, const Operation& of, void (*kernel)(void*, const Rows&)) {
  if constexpr (std::is_same_v<T, double>) {
    refuse_doubles("batch norm", stream);
  } else {
    issue<T>(stream, "batch norm", [rows = cuda_rows(of), kernel](void* native) { kernel(native, rows); });
  }
}

}  // namespace

template <Element T>
void batch_norm_moments(Stream& stream, const BatchNormMoments<T>& of) {
  if (on_cuda(stream)) return issue_norm<T>(stream, of, cuda::batch_norm_sums);
  stream.submit([of] { moments_now(of); });
}

void batch_norm_follow(Stream& stream, const BatchNormFollow& of) {
  if (on_cuda(stream)) {
    const cuda::BatchNormFollowRows rows{.running_mean = of.running_mean,
                                         .running_variance = of.running_variance,
                                         .momentum = of.momentum,
                                         .moments = of.moments,
                                         .channels = of.channels,
                                         .granules = of.granules};
    return issue<float>(stream, "batch norm", [rows](void* native) { cuda::batch_norm_follow(native, rows); });
  }
  stream.submit([of] { follow_now(of); });
}

template <Element T>
void batch_norm_gradient_sums(Stream& stream, const BatchNormGradientSums<T>& of) {
  require_shape("batch norm: dy", of.dy, of.x.rows, of.x.columns);
  if (on_cuda(stream)) return issue_norm<T>(stream, of, cuda::batch_norm_sums);
  stream.submit([of] { gradient_sums_now(of); });
}

template <Element T>
void batch_norm_forward(Stream& stream, const BatchNormForward<T>& of) {
  require_shape("batch norm: y", of.y, of.x.rows, of.x.columns);
  if (of.evaluate && (of.running_mean == nullptr || of.running_variance == nullptr)) {
    throw UsageError("batch norm: an evaluation needs the running mean and variance");
  }
  if (on_cuda(stream)) return issue_norm<T>(stream, of, cuda::batch_norm_forward);
  stream.submit([of] { forward_now(of); });
}

template <Element T>
void batch_norm_backward(Stream& stream, const BatchNormBackward<T>& of) {
  require_shape("batch norm: dy", of.dy, of.x.rows, of.x.columns);
  if (of.dx.columns != 0) require_shape("batch norm: dx", of.dx, of.x.rows, of.x.columns);
  if (on_cuda(stream)) return issue_norm<T>(stream, of, cuda::batch_norm_backward);
  stream.submit([of] { backward_now(of); });
}

template <Element T>
std::size_t batch_norm_scratch(std::size_t rows, std::size_t channels, DeviceKind device) {
  if (device == DeviceKind::cuda) {
    return cuda::batch_norm_scratch_doubles(rows, channels) * (sizeof(double) / sizeof(float));
  }
  return BatchNormRoom<T>(rows, channels).floats();
}

template <Element T>
BatchNorm<T>::BatchNorm(std::size_t channels, const BatchNormOptions& options)
    : options_(options),
      weight_({channels}, options.initial_weight),
      bias_({channels}, Initial::zeros()),
      running_mean_({channels}, Initial::zeros()),
      running_variance_({channels}, Initial::ones()) {
  if (options.synchronised && options.granules) {
    throw UsageError("batch norm: synchronised it is over the rows of all ranks, with granules over one granule's");
  }
  if (options.synchronised) statistics_.emplace(batch_norm_values(channels));
  if (options.granules) {
    statistics_.emplace(batch_norm_values(channels), CollectiveOptions{.backward = false, .of_granules = true});
  }
}

template <Element T>
void BatchNorm<T>::visit(ModuleVisitor& visitor) {
  visitor("weight", weight_);
  visitor("bias", bias_);
  visitor("running_mean", running_mean_);
  visitor("running_var", running_variance_);
  if (!statistics_) return;
  statistics_->when_skipped([this](Window& window, const Contributions& moments) { follow(window, moments); });
  visitor("statistics", *statistics_);
}

// A pass that is done again has moved them before.
template <Element T>
void BatchNorm<T>::follow(Window& window, const Contributions& moments) {
  if (window.kind() != plan::WindowKind::forward) return;
  enqueue(window, batch_norm_follow,
          {.channels = weight_.elements(),
           .running_mean = window.buffer(running_mean_).data(),
           .running_variance = window.buffer(running_variance_).data(),
           .momentum = options_.momentum,
           .moments = moments,
           .granules = options_.granules});
}

template <Element T>
void BatchNorm<T>::require_granules(const Window& window) const {
  if (options_.granules || window.kind() != plan::WindowKind::forward || window.granules() == 0) return;
  throw UsageError(fmt::format(
      "batch norm in unit {}: its running moments would follow the granules that each rank computes, and so "
      "depend on the number of ranks: set BatchNormOptions::granules",
      window.unit()));
}

template <Element T>
typename BatchNorm<T>::Saved BatchNorm<T>::forward(Window& window, ActivationStack& stack, MatrixView<const T> x,
                                                   MatrixView<T> y, Then then) {
  require_granules(window);
  const Saved saved{
      .x = x, .mean = stack.push<Arithmetic<T>>(x.columns), .inverse = stack.push<Arithmetic<T>>(x.columns)};
  const ScratchScope scope(stack);
  const auto scratch = stack.push<float>(batch_norm_scratch<T>(x.rows, x.columns, device_of(window, stack)));
  Contributions moments;
  if (statistics_ && window.kind() != plan::WindowKind::evaluate) {
    const std::span<double> own = window.contribution(*statistics_);
    enqueue(window, batch_norm_moments<T>, {.x = x, .moments = own.data(), .scratch = scratch.data()});
    moments = window.collect(*statistics_);
    if (options_.granules) {
      follow(window, moments);
      moments = {.first = own.data(), .values = own.size()};
    }
  }
  enqueue(window, batch_norm_forward<T>,
          {.x = x,
           .weight = parameter_of<T>(window, weight_),
           .bias = parameter_of<T>(window, bias_),
           .y = y,
           .residual = then.residual,
           .relu = then.relu,
           .mean = saved.mean.data(),
           .inverse = saved.inverse.data(),
           .running_mean = window.buffer(running_mean_).data(),
           .running_variance = window.buffer(running_variance_).data(),
           .evaluate = window.kind() == plan::WindowKind::evaluate,
           .update = window.kind() == plan::WindowKind::forward && !options_.granules,
           .epsilon = options_.epsilon,
           .momentum = options_.momentum,
           .moments = moments,
           .scratch = scratch.data()});
  return saved;
}

template <Element T>
void BatchNorm<T>::backward(Window& window, ActivationStack& stack, const Saved& saved, MatrixView<const T> dy,
                            MatrixView<T> dx, const T* relu_y) {
  const ScratchScope scope(stack);
  const auto scratch =
      stack.push<float>(batch_norm_scratch<T>(saved.x.rows, saved.x.columns, device_of(window, stack)));
  Contributions sums;
  double* own = nullptr;
  if (options_.synchronised) {
    own = window.contribution(*statistics_).data();
    enqueue(window, batch_norm_gradient_sums<T>,
            {.x = saved.x,
             .mean = saved.mean.data(),
             .inverse = saved.inverse.data(),
             .dy = dy,
             .relu_y = relu_y,
             .sums = own,
             .scratch = scratch.data()});
    sums = window.collect(*statistics_);
  }
  enqueue(window, batch_norm_backward<T>,
          {.x = saved.x,
           .weight = parameter_of<T>(window, weight_),
           .mean = saved.mean.data(),
           .inverse = saved.inverse.data(),
           .dy = dy,
           .relu_y = relu_y,
           .dx = dx,
           .dweight = gradient_of<T>(window, weight_),
           .dbias = gradient_of<T>(window, bias_),
           .sums = sums,
           .own_sums = own,
           .scratch = scratch.data()});
}

#define TESSERA_BATCH_NORM(T)                                                                        \
  template TESSERA_EXPORTED void batch_norm_moments(Stream&, const BatchNormMoments<T>&);            \
  template TESSERA_EXPORTED void batch_norm_gradient_sums(Stream&, const BatchNormGradientSums<T>&); \
  template TESSERA_EXPORTED void batch_norm_forward(Stream&, const BatchNormForward<T>&);            \
  template TESSERA_EXPORTED void batch_norm_backward(Stream&, const BatchNormBackward<T>&);          \
  template TESSERA_EXPORTED std::size_t batch_norm_scratch<T>(std::size_t, std::size_t, DeviceKind); \
  template class BatchNorm<T>;
TESSERA_FOR_EACH_ELEMENT(TESSERA_BATCH_NORM)

}  // namespace tessera::vision
