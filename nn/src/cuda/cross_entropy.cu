// Softmax and cross entropy: a block has a row of logits; sums over rows run in fp64, in an order that depends on the
// number of rows alone.
#include <cmath>

#include "src/cuda/cuda_layers.hpp"
#include "src/cuda/elements.cuh"

namespace tessera::nn::cuda {

namespace {

// So few blocks fit at once that what they have read once is still in the L2 when it is read again.
constexpr std::size_t most_row_threads = 1024;
constexpr unsigned sum_threads = 1024;
constexpr unsigned correct_threads = 256;

__device__ inline float weight_of(const CrossEntropyArguments& a, std::size_t row) {
  return a.weights == nullptr ? 1.0f : a.weights[row];
}

// False for a label that is no class: its row's loss and gradient become NaN.
__device__ inline bool label_fits(const CrossEntropyArguments& a, std::size_t row) {
  return a.labels[row] >= 0 && static_cast<std::size_t>(a.labels[row]) < a.all_classes;
}

// Where the row's label stands among these logits; beyond them where it is another slice's.
__device__ inline std::size_t label_of(const CrossEntropyArguments& a, std::size_t row) {
  return static_cast<std::size_t>(a.labels[row]) - a.first_class;
}

// Combines the values of a block: every thread gets the same. All threads call it.
template <typename Combine>
__device__ float combined(float value, float rest, const Combine& combine) {
  __shared__ float of_warp[warp];
  value = combine(value);
  __syncthreads();  // the last result has been read
  if (threadIdx.x % warp == 0) of_warp[threadIdx.x / warp] = value;
  __syncthreads();
  const unsigned lane = threadIdx.x % warp;
  return combine(lane < blockDim.x / warp ? of_warp[lane] : rest);
}

// f(values) for the block's share of `count` elements, packs first.
template <typename T, typename Function>
__device__ void for_each_pack(std::size_t count, bool packs, const Function& function) {
  constexpr std::size_t width = pack_width<T>;
  const std::size_t whole = packs ? count / width : 0;
  for (std::size_t i = threadIdx.x; i < whole; i += blockDim.x) function(Type<Pack<T, width>>{}, i * width);
  for (std::size_t i = whole * width + threadIdx.x; i < count; i += blockDim.x) function(Type<Pack<T, 1>>{}, i);
}

template <typename T>
struct PlainSum {
  const T* logits;
  float* sum;
  template <std::size_t width>
  __device__ void operator()(Type<Pack<T, width>>, std::size_t i) const {
    float values[width];
    load<width>(logits + i, values);
    for (std::size_t k = 0; k < width; ++k) *sum = *sum + values[k];
  }
};

template <typename T>
struct RowSum {
  const T* logits;
  float* largest;
  float* sum;

  template <std::size_t width>
  __device__ void operator()(Type<Pack<T, width>>, std::size_t i) const {
    float values[width];
    load<width>(logits + i, values);
    float above = values[0];
    for (std::size_t k = 1; k < width; ++k) above = fmaxf(above, values[k]);
    if (above > *largest) {
      *sum = *sum * __expf(*largest - above);
      *largest = above;
    }
    const float shift = *largest == -INFINITY ? 0.0f : *largest;  // so that no infinities are subtracted
    for (std::size_t k = 0; k < width; ++k) *sum = *sum + __expf(values[k] - shift);
  }
};

struct RowStatistics {
  float largest;
  float sum;  // of exponentials
};

// One pass over the row: each thread's largest logit and sum of exponentials, then those of all.
template <typename T>
__device__ RowStatistics form_statistics(const CrossEntropyArguments& a, std::size_t row, bool packs) {
  const auto* const logits = static_cast<const T*>(a.logits) + row * a.stride;
  float largest = -INFINITY;
  float sum = 0.0f;
  for_each_pack<T>(a.classes, packs, RowSum<T>{logits, &largest, &sum});
  const float above = combined(largest, -INFINITY, [](float value) { return warp_max(value); });
  const float share = largest == -INFINITY ? sum : sum * __expf(largest - above);
  const float total = combined(share, 0.0f, [](float value) { return warp_sum(value); });
  if (threadIdx.x == 0) {
    a.statistics[2 * row] = above;
    a.statistics[2 * row + 1] = total;
  }
  if (a.smoothing != 0.0f) {
    float plain = 0.0f;
    for_each_pack<T>(a.classes, packs, PlainSum<T>{logits, &plain});
    plain = combined(plain, 0.0f, [](float value) { return warp_sum(value); });
    if (threadIdx.x == 0) a.statistics[2 * a.batch + row] = plain / static_cast<float>(a.classes);
  }
  return {above, total};
}

template <typename T>
__global__ void __launch_bounds__(most_row_threads) softmax_statistics(const CrossEntropyArguments a, bool packs) {
  for (std::size_t row = blockIdx.x; row < a.batch; row += gridDim.x) form_statistics<T>(a, row, packs);
}

template <typename T>
__device__ double row_loss(const CrossEntropyArguments& a, std::size_t row) {
  const float weight = weight_of(a, row);
  if (weight == 0.0f) return 0.0;
  if (!label_fits(a, row)) return NAN;
  const auto* const logits = static_cast<const T*>(a.logits) + row * a.stride;
  double logit = static_cast<double>(a.label_logits != nullptr ? a.label_logits[row] : to_float(logits[a.labels[row]]));
  if (a.smoothing != 0.0f) {
    const double smoothing = static_cast<double>(a.smoothing);
    logit = (1.0 - smoothing) * logit + smoothing * static_cast<double>(a.statistics[2 * a.batch + row]);
  }
  const double largest = static_cast<double>(a.statistics[2 * row]);
  return static_cast<double>(weight) * (log(static_cast<double>(a.statistics[2 * row + 1])) + largest - logit);
}

// Thread t has the rows t, t + 1024, …; then in pairs.
__device__ double sum_of_threads(double value) {
  __shared__ double sums[sum_threads];
  sums[threadIdx.x] = value;
  __syncthreads();
  for (unsigned half = sum_threads / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) sums[threadIdx.x] = sums[threadIdx.x] + sums[threadIdx.x + half];
    __syncthreads();
  }
  return sums[0];
}

template <typename T>
__global__ void __launch_bounds__(sum_threads) sum_losses(const CrossEntropyArguments a, float* loss) {
  double sum = 0.0;
  for (std::size_t row = threadIdx.x; row < a.batch; row += sum_threads) sum += row_loss<T>(a, row);
  sum = sum_of_threads(sum);
  if (threadIdx.x == 0) *loss = static_cast<float>(sum / static_cast<double>(a.denominator));
}

// A slice of the classes brings three numbers of each row, as [3, batch]: its largest logit, its sum of exponentials, and
// the label's logit.
template <typename T>
__global__ void __launch_bounds__(most_row_threads)
    slice_statistics(const CrossEntropyArguments a, bool packs, float* brought) {
  for (std::size_t row = blockIdx.x; row < a.batch; row += gridDim.x) {
    const RowStatistics of = form_statistics<T>(a, row, packs);
    if (threadIdx.x != 0) continue;
    const std::size_t label = label_fits(a, row) ? label_of(a, row) : a.classes;
    brought[row] = of.largest;
    brought[a.batch + row] = of.sum;
    brought[2 * a.batch + row] =
        label < a.classes ? to_float(static_cast<const T*>(a.logits)[row * a.stride + label]) : 0.0f;
  }
}

__device__ double loss_of_slices(const CrossEntropyArguments& a, const BroughtClasses& brought,
                                 std::size_t row) {
  const auto at = [&](std::size_t slice, std::size_t number) {
    return brought.first[slice * brought.stride + number * a.batch + row];
  };
  float largest = at(0, 0);
  double sum = 0.0, of_label = 0.0;
  for (std::size_t slice = 1; slice < brought.count; ++slice) largest = fmaxf(largest, at(slice, 0));
  for (std::size_t slice = 0; slice < brought.count; ++slice) {
    sum += static_cast<double>(at(slice, 1)) * exp(static_cast<double>(at(slice, 0)) - static_cast<double>(largest));
    of_label += static_cast<double>(at(slice, 2));
  }
  a.statistics[2 * row] = largest;
  a.statistics[2 * row + 1] = static_cast<float>(sum);
  const float weight = weight_of(a, row);
  if (weight == 0.0f) return 0.0;
  if (!label_fits(a, row)) return NAN;
  return static_cast<double>(weight) * (log(sum) + static_cast<double>(largest) - of_label);
}

__global__ void __launch_bounds__(sum_threads) combine_slices(const CrossEntropyArguments a, const BroughtClasses brought, float* loss) {
  double sum = 0.0;
  for (std::size_t row = threadIdx.x; row < a.batch; row += sum_threads) sum += loss_of_slices(a, brought, row);
  sum = sum_of_threads(sum);
  if (threadIdx.x == 0) *loss = static_cast<float>(sum / static_cast<double>(a.denominator));
}

template <typename T>
struct RowGradient {
  const T* logits;
  T* gradient;
  std::size_t label;
  float largest;
  float inverse;  // of the sum
  float factor;
  float target;      // of the label
  float everywhere;  // of any other class

  template <std::size_t width>
  __device__ void operator()(Type<Pack<T, width>>, std::size_t i) const {
    float values[width];
    load<width>(logits + i, values);
    for (std::size_t k = 0; k < width; ++k) {
      const float probability = __expf(values[k] - largest) * inverse;
      values[k] = (probability - (i + k == label ? target : everywhere)) * factor;
    }
    store<width>(gradient + i, values);
  }
};

// Rows of weight 0 become zeros, rows of labels that are no class NaN: the factor makes them.
template <typename T>
struct RowFill {
  T* gradient;
  float value;
  template <std::size_t width>
  __device__ void operator()(Type<Pack<T, width>>, std::size_t i) const {
    float values[width];
    for (std::size_t k = 0; k < width; ++k) values[k] = value;
    store<width>(gradient + i, values);
  }
};

template <typename T>
struct LogitGradients {
  const float* loss_scale;
  T* dlogits;
  bool packs;
};

template <typename T>
__device__ void form_gradient(const CrossEntropyArguments& a, std::size_t row, const RowStatistics& of,
                              const LogitGradients<T>& to) {
  T* const gradient = to.dlogits + row * a.stride;
  const float weight = weight_of(a, row);
  if (weight == 0.0f || !label_fits(a, row)) {
    return for_each_pack<T>(a.classes, to.packs, RowFill<T>{gradient, weight == 0.0f ? 0.0f : NAN});
  }
  const float factor = weight / a.denominator * *to.loss_scale;
  const float everywhere = a.smoothing / static_cast<float>(a.classes);
  for_each_pack<T>(a.classes, to.packs,
                   RowGradient<T>{static_cast<const T*>(a.logits) + row * a.stride, gradient,
                                  label_of(a, row), of.largest, 1.0f / of.sum, factor,
                                  1.0f - a.smoothing + everywhere, everywhere});
}

template <typename T>
__global__ void __launch_bounds__(most_row_threads) logit_gradients(const CrossEntropyArguments a, const LogitGradients<T> to) {
  for (std::size_t row = blockIdx.x; row < a.batch; row += gridDim.x) {
    form_gradient(a, row, {a.statistics[2 * row], a.statistics[2 * row + 1]}, to);
  }
}

// The gradient may take the logits' place: nothing is written before all threads have passed the barriers of the row's
// sums, when the label's logit has been read, too.
template <typename T>
__global__ void __launch_bounds__(most_row_threads)
    statistics_and_gradients(const CrossEntropyArguments a, const LogitGradients<T> to, bool packs) {
  for (std::size_t row = blockIdx.x; row < a.batch; row += gridDim.x) {
    const auto* const logits = static_cast<const T*>(a.logits) + row * a.stride;
    if (threadIdx.x == 0 && label_fits(a, row)) a.label_logits[row] = to_float(logits[a.labels[row]]);
    form_gradient(a, row, form_statistics<T>(a, row, packs), to);
  }
}

// How many logits stand before the label's when they are sorted, by a warp: larger ones, equal ones before it, and NaN.
template <typename T>
__device__ unsigned place_of(const T* logits, std::size_t label, std::size_t classes) {
  const float at_label = to_float(logits[label]);
  float before = 0.0f;  // exact below 2^24 classes
  for (std::size_t i = threadIdx.x % warp; i < classes; i += warp) {
    const float value = to_float(logits[i]);
    const bool behind = value < at_label || (value == at_label && i >= label);
    if (i != label && !behind) before += 1.0f;
  }
  return static_cast<unsigned>(warp_sum(before));
}

// A warp has a row, whose mark is its weight where it is right, else 0; NaN where the label is no class.
template <typename T>
__global__ void mark_correct(const CrossEntropyArguments a, std::size_t among) {
  constexpr std::size_t rows_of_block = correct_threads / warp;
  for (std::size_t row = blockIdx.x * rows_of_block + threadIdx.x / warp; row < a.batch;
       row += gridDim.x * rows_of_block) {
    float mark = weight_of(a, row);
    if (mark != 0.0f && !label_fits(a, row)) {
      mark = NAN;
    } else if (mark != 0.0f) {
      const auto label = static_cast<std::size_t>(a.labels[row]);
      if (place_of(static_cast<const T*>(a.logits) + row * a.stride, label, a.classes) >= among) mark = 0.0f;
    }
    if (threadIdx.x % warp == 0) a.marks[row] = mark;
  }
}

__global__ void __launch_bounds__(sum_threads) sum_marks(const float* marks, std::size_t count, double* correct) {
  double sum = 0.0;
  for (std::size_t row = threadIdx.x; row < count; row += sum_threads) sum += static_cast<double>(marks[row]);
  sum = sum_of_threads(sum);
  if (threadIdx.x == 0) *correct = sum;
}

tessera::cuda::Launch blocks_of_rows(const CrossEntropyArguments& a) {
  const std::size_t threads = (a.classes + warp - 1) / warp * warp;
  return {.blocks = dim3(static_cast<unsigned>(a.batch < 65535 ? a.batch : 65535)),
          .threads = static_cast<unsigned>(threads < most_row_threads ? threads : most_row_threads)};
}

template <typename T>
bool has_packs(const CrossEntropyArguments& a, const void* rows) {
  return packed<T>(rows) && a.stride % pack_width<T> == 0;
}

template <typename T>
LogitGradients<T> gradients(const CrossEntropyArguments& a, const CrossEntropyGradient& to) {
  return {to.loss_scale, static_cast<T*>(to.dlogits), has_packs<T>(a, a.logits) && has_packs<T>(a, to.dlogits)};
}

}  // namespace

void cross_entropy_forward(void* native, const CrossEntropyArguments& a, float* loss) {
  for_element(a.format, [&](auto type) {
    using T = typename decltype(type)::Element;
    if (a.batch > 0) launch(native, blocks_of_rows(a), softmax_statistics<T>, a, has_packs<T>(a, a.logits));
    launch(native, {.threads = sum_threads}, sum_losses<T>, a, loss);
  });
}

void cross_entropy_backward(void* native, const CrossEntropyArguments& a, const CrossEntropyGradient& to) {
  if (a.batch == 0) return;
  for_element(a.format, [&](auto type) {
    using T = typename decltype(type)::Element;
    launch(native, blocks_of_rows(a), logit_gradients<T>, a, gradients<T>(a, to));
  });
}

void cross_entropy_at_once(void* native, const CrossEntropyArguments& a, float* loss, const CrossEntropyGradient& to) {
  for_element(a.format, [&](auto type) {
    using T = typename decltype(type)::Element;
    if (a.batch > 0) {
      launch(native, blocks_of_rows(a), statistics_and_gradients<T>, a, gradients<T>(a, to), has_packs<T>(a, a.logits));
    }
    launch(native, {.threads = sum_threads}, sum_losses<T>, a, loss);
  });
}

void cross_entropy_of_slice(void* native, const CrossEntropyArguments& a, float* brought) {
  if (a.batch == 0) return;
  for_element(a.format, [&](auto type) {
    using T = typename decltype(type)::Element;
    launch(native, blocks_of_rows(a), slice_statistics<T>, a, has_packs<T>(a, a.logits), brought);
  });
}

void cross_entropy_of_slices(void* native, const CrossEntropyArguments& a, const BroughtClasses& brought,
                             float* loss) {
  launch(native, {.threads = sum_threads}, combine_slices, a, brought, loss);
}

void count_correct(void* native, const CrossEntropyArguments& a, double* correct, std::size_t among) {
  for_element(a.format, [&](auto type) {
    using T = typename decltype(type)::Element;
    if (a.batch > 0) launch(native, blocks_for(a.batch * warp, correct_threads), mark_correct<T>, a, among);
  });
  launch(native, {.threads = sum_threads}, sum_marks, a.marks, a.batch, correct);
}

}  // namespace tessera::nn::cuda
