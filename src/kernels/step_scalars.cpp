// The scalars of one optimizer step, on the streams of any device.
#include "tessera/kernels/step_scalars.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "kernels/cuda/cuda_table.hpp"
#include "kernels/dispatch.hpp"
#include "kernels/step_arithmetic.hpp"
#include "tessera/base/error.hpp"

namespace tessera::kernels {
namespace {

void set_weights(Stream& stream, double* places, const cuda::FewWeights& few) {
  if (on_cuda(stream)) return issue(stream, [=](void* native) { cuda::set_weights(native, places, few); });
  stream.submit([=] { std::copy_n(few.weight, few.count, places); });
}

double sum_by_unit_and_rank(const NormPartials& partials) {
  const std::size_t row = row_of(partials);
  double sum = 0.0;
  for (std::size_t unit = 0; unit < partials.units; ++unit) {
    for (std::size_t rank = 0; rank < partials.ranks; ++rank) sum += partials.values[rank * row + unit];
  }
  return sum;
}

double sum_in_any_order(const NormPartials& partials) {
  ExactTotal total{};
  for (std::size_t i = 0; i < partials.units * partials.ranks; ++i) add_exactly(total, exact_term(partials, i));
  return fp64_of(total);
}

double sum_of_norms(const NormPartials& partials) {
  return partials.exact || partials.any_order ? sum_in_any_order(partials) : sum_by_unit_and_rank(partials);
}

}  // namespace

void begin_update(Stream& stream, StepScalars* scalars, NormPartials partials, StepSettings settings) {
  if (on_cuda(stream)) {
    return issue(stream, [=](void* native) { cuda::begin_update(native, scalars, partials, settings); });
  }
  stream.submit([=] { set_step(*scalars, std::sqrt(sum_of_norms(partials)), sum_of_parts(partials), settings); });
}

void set_part(Stream& stream, StepPart* part, const StepPart& value) {
  if (on_cuda(stream)) return issue(stream, [=](void* native) { cuda::set_part(native, part, value); });
  stream.submit([=] { *part = value; });
}

void set_part(Stream& stream, StepPart* part, const StepPart& value, std::span<const double> weights,
              std::size_t rounds) {
  if (weights.size() > rounds) {
    throw UsageError(fmt::format("{} weights of granules, but a rank has {} at most", weights.size(), rounds));
  }
  set_part(stream, part, value);
  auto* const places = reinterpret_cast<double*>(part + 1);
  for (std::size_t first = 0; first < rounds; first += cuda::FewWeights::most) {
    cuda::FewWeights few{.count = std::min(cuda::FewWeights::most, rounds - first), .weight = {}};
    for (std::size_t i = first; i < first + few.count && i < weights.size(); ++i) few.weight[i - first] = weights[i];
    set_weights(stream, places + first, few);
  }
}

void set_scalars(Stream& stream, StepScalars* scalars, const StepScalars& values) {
  if (on_cuda(stream)) return issue(stream, [=](void* native) { cuda::set_scalars(native, scalars, values); });
  stream.submit([=] { *scalars = values; });
}

}  // namespace tessera::kernels
