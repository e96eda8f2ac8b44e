// Batch normalisation. Sums over rows are formed as on the CPU, though in other parts: up to 64 rows in fp32, and what
// they come to in fp64, in an order that depends on the extents alone.
#include "nn/src/cuda/row_parts.cuh"
#include "vision/src/cuda/kernels.hpp"

namespace tessera::vision::cuda {

namespace {

constexpr std::size_t run_rows = 64;

RowParts norm_parts(std::size_t rows) { return parts_of_rows(rows, 256); }

// Scratch memory: what rows are scaled with, [3, channels] floats; sums of parts [part, 2, channels]; and what a rank
// brings.
float* coefficients_at(double* scratch) { return reinterpret_cast<float*>(scratch); }
double* sums_at(double* scratch, std::size_t channels) { return scratch + (3 * channels + 1) / 2; }
double* brought_at(double* scratch, std::size_t rows, std::size_t channels) {
  return sums_at(scratch, channels) + norm_parts(rows).count * 2 * channels;
}

// A relu lets dy through where y is above 0 or not a number.
__device__ inline float through(float y, float dy) { return y <= 0.0f ? 0.0f : dy; }

// A row's two terms for each channel of a pack. Of moments they are of what parts it from the first row, of gradients
// dy and dy times the normalised x.
template <std::size_t width, typename T>
struct NormTerms {
  BatchNormSumRows a;
  float centre[width];
  float inverse[width];

  __device__ NormTerms(const BatchNormSumRows& of, std::size_t channel) : a(of) {
    for (std::size_t k = 0; k < width; ++k) inverse[k] = 1.0f;
    if (a.dy == nullptr) {
      load<width>(static_cast<const T*>(a.x) + channel, centre);
    } else {
      load<width>(a.mean + channel, centre);
      load<width>(a.inverse + channel, inverse);
    }
  }
  __device__ void add(std::size_t at, float (&one)[width], float (&two)[width]) const {
    float x[width];
    float dy[width];
    load<width>(static_cast<const T*>(a.x) + at, x);
    for (std::size_t k = 0; k < width; ++k) dy[k] = x[k] = (x[k] - centre[k]) * inverse[k];
    if (a.dy != nullptr) load<width>(static_cast<const T*>(a.dy) + at, dy);
    if (a.relu_y != nullptr) {
      float y[width];
      load<width>(static_cast<const T*>(a.relu_y) + at, y);
      for (std::size_t k = 0; k < width; ++k) dy[k] = through(y[k], dy[k]);
    }
    for (std::size_t k = 0; k < width; ++k) {
      one[k] = one[k] + dy[k];
      two[k] = two[k] + dy[k] * x[k];
    }
  }
};

template <std::size_t width, typename T>
__global__ void sum_rows_of_part(const BatchNormSumRows a, std::size_t rows_of_part, double* sums_of_parts) {
  const PlaceInPart<width> at(a.rows, rows_of_part);
  double sums[2][width] = {};
  if (at.column < a.channels) {
    const NormTerms<width, T> terms(a, at.column);
    for (std::size_t run = at.first + at.group; run < at.end; run += row_groups * run_rows) {
      float one[width] = {};
      float two[width] = {};
      const std::size_t run_end = run + row_groups * run_rows < at.end ? run + row_groups * run_rows : at.end;
#pragma unroll 4
      for (std::size_t row = run; row < run_end; row += row_groups) terms.add(row * a.channels + at.column, one, two);
      for (std::size_t k = 0; k < width; ++k) {
        sums[0][k] = sums[0][k] + static_cast<double>(one[k]);
        sums[1][k] = sums[1][k] + static_cast<double>(two[k]);
      }
    }
  }
  store_sums_of_part(at, sums, a.channels, sums_of_parts);
}

// Writes what a rank brings, from the sums of all parts.
template <typename T>
__global__ void bring(const BatchNormSumRows a, const double* sums, std::size_t parts) {
  for (std::size_t c = thread_of_grid(); c <= a.channels; c += threads_of_grid()) {
    if (c == a.channels) {
      a.to[0] = static_cast<double>(a.rows);
      continue;
    }
    double one = 0.0;
    double two = 0.0;
    for (std::size_t part = 0; part < parts; ++part) {
      one = one + sums[part * 2 * a.channels + c];
      two = two + sums[(part * 2 + 1) * a.channels + c];
    }
    if (a.dy == nullptr) {
      const double shift = one / static_cast<double>(a.rows > 0 ? a.rows : 1);
      const double squares = two - one * shift;
      one = (a.rows == 0 ? 0.0 : static_cast<double>(to_float(static_cast<const T*>(a.x)[c]))) + shift;
      two = squares > 0.0 ? squares : 0.0;
    }
    a.to[1 + c] = one;
    a.to[1 + a.channels + c] = two;
  }
}

// These find what Contributions::of() and of_place() find.
__device__ inline const double* brought_by(const Contributions& all, std::size_t rank) {
  return all.first + (rank % all.ranks_of_replica * all.replicas + rank / all.ranks_of_replica) * all.stride;
}
__device__ inline const double* brought_at_place(const Contributions& all, std::size_t place) {
  return all.first + place * all.stride;
}
__device__ inline std::size_t ranks_of(const Contributions& all) {
  return static_cast<std::size_t>(all.replicas) * all.ranks_of_replica;
}

// These are of one channel.
struct ChannelMoments {
  double count = 0.0;
  double mean = 0.0;
  double squares = 0.0;
};
__device__ inline ChannelMoments brought_moments(const double* brought, std::size_t channels, std::size_t channel) {
  return {brought[0], brought[1 + channel], brought[1 + channels + channel]};
}
// The moments are over the rows of all ranks, one rank added after the other, as on the CPU.
__device__ inline ChannelMoments moments_of(const Contributions& all, std::size_t channels, std::size_t channel) {
  ChannelMoments sum;
  for (std::size_t rank = 0; rank < ranks_of(all); ++rank) {
    const ChannelMoments more = brought_moments(brought_by(all, rank), channels, channel);
    if (more.count == 0.0) continue;
    const double apart = more.mean - sum.mean;
    const double together = sum.count + more.count;
    if (sum.count == 0.0) {
      sum = more;
      continue;
    }
    sum.squares = sum.squares + (more.squares + apart * apart * sum.count * more.count / together);
    sum.mean = sum.mean + apart * more.count / together;
    sum.count = together;
  }
  return sum;
}

__device__ inline double at_least_one(double count) { return count > 1.0 ? count : 1.0; }

__device__ inline void move_running(float* running, double to, double momentum) {
  *running = static_cast<float>(static_cast<double>(*running) + momentum * (to - static_cast<double>(*running)));
}

__device__ inline void follow_channel(const BatchNormFollowRows& a, std::size_t c, const ChannelMoments& moments) {
  if (moments.count == 0.0) return;
  move_running(a.running_mean + c, moments.mean, a.momentum);
  move_running(a.running_variance + c, moments.squares / at_least_one(moments.count - 1.0), a.momentum);
}

__global__ void follow_channels(const BatchNormFollowRows a) {
  for (std::size_t c = thread_of_grid(); c < a.channels; c += threads_of_grid()) {
    if (!a.granules) {
      follow_channel(a, c, moments_of(a.moments, a.channels, c));
      continue;
    }
    for (std::size_t place = 0; place < ranks_of(a.moments); ++place) {
      follow_channel(a, c, brought_moments(brought_at_place(a.moments, place), a.channels, c));
    }
  }
}

// Mean and inverse deviation of each channel, and what rows are scaled with.
template <typename T>
__global__ void forward_coefficients(const BatchNormForwardRows a, float* coefficients) {
  for (std::size_t c = thread_of_grid(); c < a.channels; c += threads_of_grid()) {
    double mean = 0.0;
    double variance = 0.0;
    if (a.evaluate) {
      mean = static_cast<double>(a.running_mean[c]);
      variance = static_cast<double>(a.running_variance[c]);
    } else {
      const ChannelMoments moments = moments_of(a.moments, a.channels, c);
      mean = moments.mean;
      variance = moments.squares / at_least_one(moments.count);
      if (a.update && a.running_mean != nullptr) {
        follow_channel({a.running_mean, a.running_variance, a.momentum, a.moments, a.channels, false}, c, moments);
      }
    }
    a.mean[c] = static_cast<float>(mean);
    a.inverse[c] = static_cast<float>(1.0 / sqrt(variance + a.epsilon));
    coefficients[c] = a.inverse[c] * to_float(static_cast<const T*>(a.weight)[c]);
    coefficients[a.channels + c] = to_float(static_cast<const T*>(a.bias)[c]);
  }
}

// The parameters' gradients, and what rows are scaled with.
template <typename T>
__global__ void backward_coefficients(const BatchNormBackwardRows a, float* coefficients) {
  const auto store_gradient = [&](void* to, std::size_t c, double value) {
    if (to == nullptr) return;
    T* const gradient = static_cast<T*>(to) + c;
    const auto sum = static_cast<float>(value);
    *gradient = to_element<T>(a.accumulate ? to_float(*gradient) + sum : sum);
  };
  for (std::size_t c = thread_of_grid(); c < a.channels; c += threads_of_grid()) {
    double rows = 0.0;
    double one = 0.0;
    double two = 0.0;
    for (std::size_t rank = 0; rank < ranks_of(a.sums); ++rank) {
      const double* const brought = brought_by(a.sums, rank);
      rows = rows + brought[0];
      one = one + brought[1 + c];
      two = two + brought[1 + a.channels + c];
    }
    rows = at_least_one(rows);
    store_gradient(a.dbias, c, a.own_sums[1 + c]);
    store_gradient(a.dweight, c, a.own_sums[1 + a.channels + c]);
    coefficients[c] = a.inverse[c] * to_float(static_cast<const T*>(a.weight)[c]);
    coefficients[a.channels + c] = static_cast<float>(one / rows);
    coefficients[2 * a.channels + c] = static_cast<float>(two / rows * static_cast<double>(a.inverse[c]));
  }
}

// For the elements of rows, a pack at a time.
template <std::size_t width, typename Body>
__global__ void scale_rows(const Body body, std::size_t channels, std::size_t count) {
  for (std::size_t i = thread_of_grid() * width; i < count; i += threads_of_grid() * width) {
    body.template at<width>(i, i % channels);
  }
}

template <typename T>
struct ForwardRows {
  const T* x;
  const T* residual;
  T* y;
  const float* mean;
  const float* coefficients;
  std::size_t channels;
  bool relu;

  template <std::size_t width>
  __device__ void at(std::size_t i, std::size_t channel) const {
    float values[width];
    float centre[width];
    float scale[width];
    float shift[width];
    float past[width] = {};
    load<width>(x + i, values);
    load<width>(mean + channel, centre);
    load<width>(coefficients + channel, scale);
    load<width>(coefficients + channels + channel, shift);
    if (residual != nullptr) load<width>(residual + i, past);
    for (std::size_t k = 0; k < width; ++k) {
      values[k] = (values[k] - centre[k]) * scale[k] + shift[k];
      if (residual != nullptr) values[k] = values[k] + past[k];
      if (relu) values[k] = values[k] <= 0.0f ? 0.0f : values[k];
    }
    store<width>(y + i, values);
  }
};

template <typename T>
struct BackwardRows {
  const T* x;
  const T* dy;
  const T* relu_y;
  T* dx;
  const float* mean;
  const float* coefficients;
  std::size_t channels;

  template <std::size_t width>
  __device__ void at(std::size_t i, std::size_t channel) const {
    float values[width];
    float gradient[width];
    float centre[width];
    float scale[width];
    float shift[width];
    float slope[width];
    load<width>(x + i, values);
    load<width>(dy + i, gradient);
    load<width>(mean + channel, centre);
    load<width>(coefficients + channel, scale);
    load<width>(coefficients + channels + channel, shift);
    load<width>(coefficients + 2 * channels + channel, slope);
    if (relu_y != nullptr) {
      float y[width];
      load<width>(relu_y + i, y);
      for (std::size_t k = 0; k < width; ++k) gradient[k] = through(y[k], gradient[k]);
    }
    for (std::size_t k = 0; k < width; ++k) {
      values[k] = (gradient[k] - shift[k] - (values[k] - centre[k]) * slope[k]) * scale[k];
    }
    store<width>(dx + i, values);
  }
};

// Packs need whole rows of them, also of the floats that they are scaled with.
template <std::size_t width, typename... Pointers>
bool whole_packs(std::size_t channels, const float* floats, const Pointers*... pointers) {
  return channels % width == 0 && packed<float>(floats, width) && (packed<Pointers>(pointers, width) && ...);
}

template <typename T, typename Body>
void scale(void* native, const Body& body, bool packs, std::size_t channels, std::size_t rows) {
  const std::size_t count = rows * channels;
  if (count == 0) return;
  launch(native, blocks_for(packs ? count / pack_width<T> : count),
         packs ? scale_rows<pack_width<T>, Body> : scale_rows<1, Body>, body, channels, count);
}

template <std::size_t width, typename T>
void sum_parts_of_rows(void* native, const BatchNormSumRows& a, const RowParts& parts) {
  launch(native, blocks_of_parts<width>(parts, a.channels), sum_rows_of_part<width, T>, a, parts.rows,
         sums_at(a.scratch, a.channels));
}

}  // namespace

void batch_norm_sums(void* native, const BatchNormSumRows& a) {
  for_element(a.format, [&](auto type) {
    using T = typename decltype(type)::Element;
    const RowParts parts = norm_parts(a.rows);
    const bool pairs = a.channels % 2 == 0 && packed<T>(a.x, 2) && packed<T>(a.dy, 2) && packed<T>(a.relu_y, 2) &&
                       packed<float>(a.mean, 2) && packed<float>(a.inverse, 2);
    if (parts.count > 0 && a.channels > 0) {
      pairs ? sum_parts_of_rows<2, T>(native, a, parts) : sum_parts_of_rows<1, T>(native, a, parts);
    }
    launch(native, blocks_for(a.channels + 1, 64), bring<T>, a, sums_at(a.scratch, a.channels), parts.count);
  });
}

void batch_norm_follow(void* native, const BatchNormFollowRows& a) {
  if (a.channels > 0) launch(native, blocks_for(a.channels, 64), follow_channels, a);
}

void batch_norm_forward(void* native, const BatchNormForwardRows& given) {
  BatchNormForwardRows a = given;
  if (a.channels == 0) return;
  if (!a.evaluate && a.moments.first == nullptr) {
    double* const alone = brought_at(a.scratch, a.rows, a.channels);
    batch_norm_sums(native, {.format = a.format,
                             .x = a.x,
                             .dy = nullptr,
                             .relu_y = nullptr,
                             .mean = nullptr,
                             .inverse = nullptr,
                             .to = alone,
                             .rows = a.rows,
                             .channels = a.channels,
                             .scratch = a.scratch});
    a.moments = {.first = alone, .values = 1 + 2 * a.channels};
  }
  float* const coefficients = coefficients_at(a.scratch);
  for_element(a.format, [&](auto type) {
    using T = typename decltype(type)::Element;
    launch(native, blocks_for(a.channels, 64), forward_coefficients<T>, a, coefficients);
    const ForwardRows<T> body{static_cast<const T*>(a.x), static_cast<const T*>(a.residual), static_cast<T*>(a.y),
                              a.mean,                     coefficients,                      a.channels,
                              a.relu};
    const bool packs = whole_packs<pack_width<T>>(a.channels, a.mean, coefficients, body.x, body.residual, body.y);
    scale<T>(native, body, packs, a.channels, a.rows);
  });
}

void batch_norm_backward(void* native, const BatchNormBackwardRows& given) {
  BatchNormBackwardRows a = given;
  if (a.channels == 0) return;
  if (a.sums.first == nullptr) {
    double* const alone = brought_at(a.scratch, a.rows, a.channels);
    batch_norm_sums(native, {.format = a.format,
                             .x = a.x,
                             .dy = a.dy,
                             .relu_y = a.relu_y,
                             .mean = a.mean,
                             .inverse = a.inverse,
                             .to = alone,
                             .rows = a.rows,
                             .channels = a.channels,
                             .scratch = a.scratch});
    a.sums = {.first = alone, .values = 1 + 2 * a.channels};
    a.own_sums = alone;
  }
  float* const coefficients = coefficients_at(a.scratch);
  for_element(a.format, [&](auto type) {
    using T = typename decltype(type)::Element;
    launch(native, blocks_for(a.channels, 64), backward_coefficients<T>, a, coefficients);
    if (a.dx == nullptr) return;
    const BackwardRows<T> body{static_cast<const T*>(a.x), static_cast<const T*>(a.dy), static_cast<const T*>(a.relu_y),
                               static_cast<T*>(a.dx),      a.mean,                      coefficients,
                               a.channels};
    const bool packs =
        whole_packs<pack_width<T>>(a.channels, a.mean, coefficients, body.x, body.dy, body.relu_y, body.dx);
    scale<T>(native, body, packs, a.channels, a.rows);
  });
}

std::size_t batch_norm_scratch_doubles(std::size_t rows, std::size_t channels) {
  return (3 * channels + 1) / 2 + norm_parts(rows).count * 2 * channels + 1 + 2 * channels;
}

}  // namespace tessera::vision::cuda
