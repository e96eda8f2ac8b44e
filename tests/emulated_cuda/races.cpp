// Each kernel with barriers, shuffles or atomics once over small data, for ThreadSanitizer: what they compute is
// others' to test. A launch runs at once, on the calling thread.
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "fibers.hpp"
#include "kernels/cuda/cuda_table.hpp"
#include "nn/src/cuda/cuda_layers.hpp"
#include "tessera/kernels/norm.hpp"

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
                                      .stride = classes};
  cuda::count_correct(stream, a, &correct, 2);
  cuda::CrossEntropyArguments apart = a;
  apart.label_logits = nullptr;
  cuda::cross_entropy_forward(stream, apart, &loss);
  cuda::cross_entropy_backward(stream, apart, {&loss_scale, gradient.data()});
  cuda::cross_entropy_at_once(stream, a, &loss, {&loss_scale, logits.data()});
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
                                    .scratch = scratch.data()});
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
  std::puts("no race");
  return EXIT_SUCCESS;
}
