// Each kernel with barriers, shuffles or atomics once over small data, for ThreadSanitizer: what they compute is
// others' to test. A launch runs at once, on the calling thread.
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <array>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "fibers.hpp"
#include "kernels/cuda/cuda_table.hpp"
#include "nn/src/cuda/cuda_layers.hpp"
#include "tessera/kernels/norm.hpp"
#include "vision/src/cuda/kernels.hpp"

const char* cudaGetErrorName(cudaError_t) { return "an error"; }
const char* cudaGetErrorString(cudaError_t) { return "of the emulated device"; }
cudaError_t cudaGetLastError() { return cudaSuccess; }
cudaError_t cudaGetDevice(int* device) { return *device = 0, cudaSuccess; }
cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) { return cudaSuccess; }
cudaError_t emulated::launch_kernel(const void*, const cudaLaunchConfig_t& configuration,
                                    std::function<void()> thread) {
  run_grid(configuration, thread);
  return cudaSuccess;
}

namespace {

using namespace tessera;
using namespace tessera::nn;

void* const stream = nullptr;

template <typename T>
constexpr Format format = std::is_same_v<T, float> ? Format::fp32 : Format::bf16;
template <typename T>
T element(float value) {
  if constexpr (std::is_same_v<T, float>)
    return value;
  else
    return __float2bfloat16_rn(value);
}

template <typename T>
std::vector<T> numbers(std::size_t count) {
  std::minstd_rand random(static_cast<unsigned>(count));
  std::vector<T> result;
  while (result.size() < count) result.push_back(element<T>(static_cast<float>(random() % 200) / 100.0f - 1.0f));
  return result;
}

template <typename T>
void layer_norm(std::size_t dim) {
  constexpr std::size_t rows = 70;
  const auto x = numbers<T>(rows * dim), weight = numbers<T>(dim), bias = numbers<T>(dim), dy = numbers<T>(rows * dim);
  std::vector<T> y(rows * dim), dx(rows * dim), dweight(dim), dbias(dim);
  std::vector<float> mean(rows), inverse(rows), scratch(cuda::layer_norm_scratch(rows, dim));
  cuda::layer_norm_forward(stream, {format<T>, x.data(), weight.data(), bias.data(), y.data(), mean.data(),
                                    inverse.data(), rows, dim, 1e-5});
  cuda::layer_norm_backward(stream,
                            {format<T>, x.data(), weight.data(), mean.data(), inverse.data(), dy.data(), nullptr,
                             dx.data(), dweight.data(), dbias.data(), rows, dim, false},
                            scratch.data());
}

template <typename T>
void cross_entropy() {
  constexpr std::size_t rows = 5, classes = 130;
  auto logits = numbers<T>(rows * classes);
  std::vector<T> gradient(logits.size());
  const std::vector<std::int32_t> labels = {0, 129, 64, 7, 8};
  std::vector<float> statistics(3 * rows), label_logits(rows), marks(rows);
  float loss = 0.0f;
  double correct = 0.0;
  const float loss_scale = 1.0f;
  const cuda::CrossEntropyArguments a{.format = format<T>,
                                      .logits = logits.data(),
                                      .labels = labels.data(),
                                      .weights = nullptr,
                                      .denominator = 5.0f,
                                      .statistics = statistics.data(),
                                      .label_logits = label_logits.data(),
                                      .marks = marks.data(),
                                      .smoothing = 0.1f,
                                      .batch = rows,
                                      .classes = classes,
                                      .stride = classes,
                                      .all_classes = classes,
                                      .first_class = 0};
  cuda::count_correct(stream, a, &correct, 2);
  cuda::CrossEntropyArguments apart = a;
  apart.label_logits = nullptr;
  cuda::cross_entropy_forward(stream, apart, &loss);
  cuda::cross_entropy_backward(stream, apart, {&loss_scale, gradient.data()});
  cuda::cross_entropy_at_once(stream, a, &loss, {&loss_scale, logits.data()});
  std::vector<float> brought(3 * rows);
  cuda::cross_entropy_of_slice(stream, apart, brought.data());
  cuda::cross_entropy_of_slices(stream, apart, {brought.data(), brought.size(), 1}, &loss);
}

void embedding() {
  constexpr std::size_t rows = 1100, vocabulary = 300, dim = 3;
  std::vector<std::int32_t> ids;
  for (std::size_t row = 0; row < rows; ++row) ids.push_back(static_cast<std::int32_t>(row * 7 % vocabulary));
  const auto dy = numbers<float>(rows * dim);
  std::vector<float> dtable(vocabulary * dim), dpositions(rows * dim);
  std::vector<std::int32_t> scratch(cuda::embedding_backward_scratch(rows, vocabulary));
  cuda::embedding_backward(stream, {.format = Format::fp32,
                                    .ids = ids.data(),
                                    .dy = dy.data(),
                                    .dtable = dtable.data(),
                                    .dpositions = dpositions.data(),
                                    .sequence = rows,
                                    .first_position = 0,
                                    .rows = rows,
                                    .vocabulary = vocabulary,
                                    .context = rows,
                                    .dim = dim,
                                    .accumulate = false,
                                    .scratch = scratch.data(),
                                    .first_id = 0});
}

template <typename T>
void attention(std::size_t sequence, std::size_t head_dim, std::uint32_t drop_below) {
  constexpr std::size_t heads = 2;
  const std::size_t values = sequence * heads * head_dim;
  const auto qkv = numbers<T>(3 * values), dout = numbers<T>(values);
  std::vector<T> out(values), dqkv(3 * values);
  std::vector<float> statistics(sequence * heads), deltas(sequence * heads);
  const cuda::AttentionTiles a{
      .format = format<T>,
      .sequences = 1,
      .sequence = sequence,
      .heads = heads,
      .head_dim = head_dim,
      .queries = sequence,
      .scale = 0.2f,
      .causal = true,
      .mask = {.key = {1, 2}, .step = 3, .layer = 4, .first_row = 5, .drop_below = drop_below, .scale = 1.5f},
      .mask_step = heads,
      .qkv = qkv.data(),
      .out = out.data(),
      .statistics = statistics.data(),
      .dout = dout.data(),
      .dqkv = dqkv.data(),
      .deltas = deltas.data(),
      .scratch = {}};
  cuda::attention_forward(stream, a);
  cuda::attention_backward(stream, a);
}

void sums() {
  constexpr std::size_t rows = 70, columns = 40;
  const auto from = numbers<float>(rows * columns);
  std::vector<float> to(columns), scratch(cuda::column_sums_scratch(rows, columns));
  cuda::column_sums(stream, {Format::fp32, from.data(), to.data(), rows, columns, false, scratch.data()});
  std::vector<double> lanes(kernels::norm_lanes);
  double norm = 0.0;
  kernels::cuda::sum_of_squares(stream, {from.data(), kernels::Format::fp32, from.size()}, lanes.data(), &norm);
  const std::vector<double> partials(300, 1.0);
  kernels::StepScalars scalars;
  kernels::cuda::begin_update(stream, &scalars, {.values = partials.data(), .units = 100, .ranks = 3}, {});
  std::vector<kernels::ExactSquares> squares(kernels::cuda::most_exact_partials);
  kernels::ExactSquares exact{};
  kernels::cuda::exact_squares(stream, {from.data(), kernels::Format::fp32, from.size()}, squares.data(), &exact);
  const std::vector<double> exact_rows(3 * (4 * 100 + 2 + 5));
  kernels::cuda::begin_update(
      stream, &scalars,
      {.values = exact_rows.data(), .units = 100, .ranks = 3, .divisor = 3.0, .exact = true, .rounds = 5}, {});
}

template <typename T>
void batch_norm(std::size_t channels) {
  constexpr std::size_t rows = 600;
  const auto x = numbers<T>(rows * channels), dy = numbers<T>(rows * channels + 1), weight = numbers<T>(channels);
  std::vector<T> y(rows * channels), dx(rows * channels), dweight(channels), dbias(channels);
  std::vector<float> mean(channels), inverse(channels), running_mean(channels), running_variance(channels);
  std::vector<double> scratch(vision::cuda::batch_norm_scratch_doubles(rows, channels));
  vision::cuda::batch_norm_forward(stream, {.format = format<T>,
                                            .relu = true,
                                            .evaluate = false,
                                            .update = true,
                                            .x = x.data(),
                                            .weight = weight.data(),
                                            .bias = weight.data(),
                                            .residual = nullptr,
                                            .y = y.data(),
                                            .mean = mean.data(),
                                            .inverse = inverse.data(),
                                            .running_mean = running_mean.data(),
                                            .running_variance = running_variance.data(),
                                            .epsilon = 1e-5,
                                            .momentum = 0.1,
                                            .moments = {},
                                            .rows = rows,
                                            .channels = channels,
                                            .scratch = scratch.data()});
  vision::cuda::batch_norm_backward(stream, {.format = format<T>,
                                             .accumulate = false,
                                             .x = x.data(),
                                             .weight = weight.data(),
                                             .mean = mean.data(),
                                             .inverse = inverse.data(),
                                             .dy = dy.data(),
                                             .relu_y = y.data(),
                                             .dx = dx.data(),
                                             .dweight = dweight.data(),
                                             .dbias = dbias.data(),
                                             .sums = {},
                                             .own_sums = nullptr,
                                             .rows = rows,
                                             .channels = channels,
                                             .scratch = scratch.data()});
}

// Windows of 3 pixels that overlap, over images of 7 by 7.
void pooling() {
  constexpr std::size_t images = 2, channels = 5, image = 7, result = 4;
  constexpr vision::PoolSide side{.kernel = 3, .stride = 2, .padding = 1, .image = image, .result = result};
  const vision::cuda::PooledImages of{
      Format::fp32, std::bit_cast<vision::PoolSides>(std::array<vision::PoolSide, 2>{side, side}), images, channels};
  const auto x = numbers<float>(images * image * image * channels);
  std::vector<float> y(images * result * result * channels), dx(x.size());
  std::vector<std::uint8_t> places(y.size());
  vision::cuda::max_pool(stream, of, x.data(), y.data(), places.data());
  vision::cuda::max_pool_gradient(stream, of, y.data(), places.data(), dx.data());
  vision::cuda::average_pool(stream, of, x.data(), y.data());
  vision::cuda::average_pool_gradient(stream, of, y.data(), dx.data());
}

void convolution() {
  const vision::cuda::ConvolutionPart part{.format = Format::fp32,
                                           .of = {.images = 2,
                                                  .image = {6, 7},
                                                  .result = {6, 7},
                                                  .in = 6,
                                                  .out = 4,
                                                  .kernel = {3, 3},
                                                  .stride = {1, 1},
                                                  .padding = {1, 1},
                                                  .dilation = {1, 1},
                                                  .groups = 2},
                                           .first_image = 0,
                                           .images = 2,
                                           .group = 1};
  const std::size_t pixels = 2 * 6 * 7;
  const auto x = numbers<float>(pixels * 6), weight = numbers<float>(part.of.weights());
  std::vector<float> seen(pixels * part.of.depth()), dx(x.size()), turned(weight.size()), y(pixels * 4);
  vision::cuda::see_pixels(stream, part, x.data(), seen.data());
  vision::cuda::give_pixels_back(stream, part, seen.data(), dx.data());
  const vision::cuda::WeightOrder order{.out = 4, .channels = 3, .places = 9};
  vision::cuda::turn_weights(stream, Format::fp32, order, weight.data(), turned.data());
  std::vector<float> dweight(weight.size());
  vision::cuda::turn_back(stream, {.format = Format::fp32,
                                   .sums_format = Format::fp32,
                                   .of = order,
                                   .sums = turned.data(),
                                   .dweight = dweight.data(),
                                   .accumulate = true});
}

void tokens() {
  constexpr std::size_t images = 3, count = 5, dim = 7;
  const auto patches = numbers<float>(images * (count - 1) * dim), row = numbers<float>(count * dim);
  std::vector<float> y(images * count * dim), dpatches(patches.size()), dcls(dim), dposition(count * dim);
  vision::cuda::place_tokens(stream,
                             {Format::fp32, images, count, dim, patches.data(), row.data(), row.data(), y.data()});
  vision::cuda::token_gradients(
      stream, {Format::fp32, images, count, dim, y.data(), dpatches.data(), dcls.data(), dposition.data()});
  std::vector<float> first(images * dim);
  vision::cuda::class_tokens(stream, {Format::fp32, false, images, count, dim, y.data(), first.data()});
  vision::cuda::class_tokens(stream, {Format::fp32, true, images, count, dim, first.data(), y.data()});
}

}  // namespace

int main() {
  layer_norm<float>(36);
  layer_norm<__nv_bfloat16>(33);
  cross_entropy<float>();
  cross_entropy<__nv_bfloat16>();
  embedding();
  attention<float>(70, 16, 0);
  attention<__nv_bfloat16>(130, 16, 1u << 30);
  attention<__nv_bfloat16>(130, 33, 0);
  sums();
  batch_norm<float>(36);
  batch_norm<__nv_bfloat16>(33);
  pooling();
  convolution();
  tokens();
  std::puts("no race");
  return EXIT_SUCCESS;
}
