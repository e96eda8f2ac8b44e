// The squared norm, enqueued on the streams of any device.
#include "tessera/kernels/norm.hpp"

#include <cmath>
#include <limits>

#include "device/cuda/cuda_queue.hpp"
#include "kernels/cpu/kernels_of_lanes.hpp"
#include "kernels/cuda/cuda_table.hpp"
#include "kernels/dispatch.hpp"
#include "tessera/base/error.hpp"
#include "tessera/base/half.hpp"

namespace tessera::kernels {

static_assert(norm_block == norm_block_elements && norm_lanes == norm_fp64_lanes);
static_assert(device::CudaQueue::workspace_bytes >= Bytes(norm_lanes * sizeof(double)));

void sum_of_squares(Stream& stream, Source data, std::size_t count, double* result) {
  const NormArguments arguments{data.data, format_of(data.type), count};
  if (on_cuda(stream)) {
    auto* const lanes = static_cast<double*>(device::cuda_queue(stream).workspace());
    return issue(stream, [=](void* native) { cuda::sum_of_squares(native, arguments, lanes, result); });
  }
  stream.submit([=, run = active_table().sum_of_squares] { *result = run(arguments); });
}

namespace {

constexpr std::int64_t nothing = 0, not_finite = 100, first_bin = 16;

// Those of `sum` from another top on.
void raise(ExactSquares& sum, std::int64_t top) {
  for (; sum.top < top && sum.top != nothing; ++sum.top) {
    sum.bins[2] = sum.bins[1];
    sum.bins[1] = sum.bins[0];
    sum.bins[0] = 0;
  }
  sum.top = top;
}

// A bin holds what is below half of the one above it.
void add_square(ExactSquares& sum, double x) {
  double rest = x * x;
  if (rest == 0.0) return;
  if (!std::isfinite(rest)) return void(sum.top = not_finite);
  if (sum.top == not_finite) return;
  std::int64_t bin = -12;
  while (rest >= std::ldexp(1.0, static_cast<int>(32 * bin + 31))) ++bin;
  if (bin + first_bin > sum.top) raise(sum, bin + first_bin);
  for (int slice = 0; slice < 3; ++slice, --bin) {
    const double unit = std::ldexp(1.0, static_cast<int>(32 * bin)), whole = std::nearbyint(rest / unit);
    const std::int64_t at = sum.top - (bin + first_bin);
    if (at < 3) sum.bins[at] += static_cast<std::int64_t>(whole);
    rest -= whole * unit;
  }
}

}  // namespace

void add(ExactSquares& sum, const ExactSquares& more) {
  if (more.top == nothing || sum.top == not_finite) return;
  if (more.top == not_finite) return void(sum.top = not_finite);
  if (more.top > sum.top) raise(sum, more.top);
  for (std::int64_t at = sum.top - more.top, from = 0; at < 3; ++at, ++from) sum.bins[at] += more.bins[from];
}

double value_of(const ExactSquares& sum) {
  if (sum.top == nothing) return 0.0;
  if (sum.top == not_finite) return std::numeric_limits<double>::infinity();
  const int bin = static_cast<int>(32 * (sum.top - first_bin));
  double value = std::ldexp(static_cast<double>(sum.bins[2]), bin - 64);
  value += std::ldexp(static_cast<double>(sum.bins[1]), bin - 32);
  return value + std::ldexp(static_cast<double>(sum.bins[0]), bin);
}

void exact_squares(Stream& stream, Source data, std::size_t count, ExactSquares* result) {
  if (on_cuda(stream)) throw UsageError("exact norms are of the CPU, for now");
  stream.submit([=] {
    *result = {};
    for (std::size_t i = 0; i < count; ++i) {
      switch (data.type) {
        case DType::fp32: add_square(*result, static_cast<double>(static_cast<const float*>(data.data)[i])); break;
        case DType::bf16:
          add_square(*result, static_cast<double>(float(static_cast<const bf16*>(data.data)[i])));
          break;
        case DType::fp16:
          add_square(*result, static_cast<double>(float(static_cast<const fp16*>(data.data)[i])));
          break;
      }
    }
  });
}

}  // namespace tessera::kernels
