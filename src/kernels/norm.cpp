// The squared norm, enqueued on the streams of any device.
#include "tessera/kernels/norm.hpp"

#include <algorithm>
#include <bit>

#include "device/cuda/cuda_queue.hpp"
#include "kernels/cpu/kernels_of_lanes.hpp"
#include "kernels/cuda/cuda_table.hpp"
#include "kernels/dispatch.hpp"
#include "kernels/exact_arithmetic.hpp"

namespace tessera::kernels {

static_assert(norm_block == norm_block_elements && norm_lanes == norm_fp64_lanes);
static_assert(device::CudaQueue::workspace_bytes >= Bytes(norm_lanes * sizeof(double)));
static_assert(device::CudaQueue::workspace_bytes >= Bytes(cuda::most_exact_partials * sizeof(ExactSquares)));

namespace {

double sum_of_squares(const NormArguments& of, Threads threads) {
  const std::size_t blocks = (of.count + norm_block - 1) / norm_block;
  // Lanes with a block in them, rounded up to a power of two: zeros change no sum.
  const std::size_t used = std::min(std::bit_ceil(blocks), norm_lanes);
  double lane[norm_lanes];
  std::fill_n(lane, used, 0.0);
  const auto add_blocks = [&, run = active_table().add_blocks](std::size_t first, std::size_t last, std::size_t) {
    run(of, first, last, lane);
  };
  if (threads == Threads::one) {
    add_blocks(0, used, 0);
  } else {
    const std::size_t least = shares_of_elements(of.count).least / norm_block;
    parallel::in_shares({.count = std::min(blocks, used), .least = least}, add_blocks);
  }
  for (std::size_t half = used / 2; half > 0; half /= 2) {
    for (std::size_t k = 0; k < half; ++k) lane[k] += lane[k + half];
  }
  return lane[0];
}

}  // namespace

void sum_of_squares(Stream& stream, Source data, std::size_t count, double* result, Threads threads) {
  const NormArguments arguments{data.data, format_of(data.type), count};
  if (on_cuda(stream)) {
    auto* const lanes = static_cast<double*>(device::cuda_queue(stream).workspace());
    return issue(stream, [=](void* native) { cuda::sum_of_squares(native, arguments, lanes, result); });
  }
  stream.submit([=] { *result = sum_of_squares(arguments, threads); });
}

void exact_squares(Stream& stream, Source data, std::size_t count, ExactSquares* result) {
  const NormArguments arguments{data.data, format_of(data.type), count};
  if (on_cuda(stream)) {
    auto* const partials = static_cast<ExactSquares*>(device::cuda_queue(stream).workspace());
    return issue(stream, [=](void* native) { cuda::exact_squares(native, arguments, partials, result); });
  }
  stream.submit([=, run = active_table().exact_squares] { *result = run(arguments); });
}

void add(ExactSquares& sum, const ExactSquares& term) { add_exactly(sum, term); }

double value_of(const ExactSquares& sum) {
  ExactTotal total{};
  add_exactly(total, sum);
  return fp64_of(total);
}

}  // namespace tessera::kernels
