// The squared norm, enqueued on the streams of any device.
#include "tessera/kernels/norm.hpp"

#include "device/cuda/cuda_queue.hpp"
#include "kernels/cpu/kernels_of_lanes.hpp"
#include "kernels/cuda/cuda_table.hpp"
#include "kernels/dispatch.hpp"
#include "kernels/exact_arithmetic.hpp"

namespace tessera::kernels {

static_assert(norm_block == norm_block_elements && norm_lanes == norm_fp64_lanes);
static_assert(device::CudaQueue::workspace_bytes >= Bytes(norm_lanes * sizeof(double)));
static_assert(device::CudaQueue::workspace_bytes >= Bytes(cuda::most_exact_partials * sizeof(ExactSquares)));

void sum_of_squares(Stream& stream, Source data, std::size_t count, double* result) {
  const NormArguments arguments{data.data, format_of(data.type), count};
  if (on_cuda(stream)) {
    auto* const lanes = static_cast<double*>(device::cuda_queue(stream).workspace());
    return issue(stream, [=](void* native) { cuda::sum_of_squares(native, arguments, lanes, result); });
  }
  stream.submit([=, run = active_table().sum_of_squares] { *result = run(arguments); });
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
