// The scalars of one optimizer step, on the streams of any device.
#include "tessera/kernels/step_scalars.hpp"

#include <cmath>

#include "kernels/cuda/cuda_table.hpp"
#include "kernels/dispatch.hpp"
#include "kernels/step_arithmetic.hpp"
#include "tessera/kernels/norm.hpp"

namespace tessera::kernels {
namespace {

double sum_by_unit_and_rank(const NormPartials& partials) {
  const std::size_t row = row_of(partials);
  if (partials.exact) {
    ExactSquares all{};
    for (std::size_t rank = 0; rank < partials.ranks; ++rank) {
      const auto* const squares = reinterpret_cast<const ExactSquares*>(partials.values + rank * row);
      for (std::size_t unit = 0; unit < partials.units; ++unit) add(all, squares[unit]);
    }
    return value_of(all);
  }
  double sum = 0.0;
  for (std::size_t unit = 0; unit < partials.units; ++unit) {
    for (std::size_t rank = 0; rank < partials.ranks; ++rank) sum += partials.values[rank * row + unit];
  }
  return sum;
}

}  // namespace

void begin_update(Stream& stream, StepScalars* scalars, NormPartials partials, StepSettings settings) {
  if (on_cuda(stream)) {
    return issue(stream, [=](void* native) { cuda::begin_update(native, scalars, partials, settings); });
  }
  stream.submit(
      [=] { set_step(*scalars, std::sqrt(sum_by_unit_and_rank(partials)), sum_of_parts(partials), settings); });
}

void set_part(Stream& stream, StepPart* part, const StepPart& value) {
  if (on_cuda(stream)) return issue(stream, [=](void* native) { cuda::set_part(native, part, value); });
  stream.submit([=] { *part = value; });
}

void set_scalars(Stream& stream, StepScalars* scalars, const StepScalars& values) {
  if (on_cuda(stream)) return issue(stream, [=](void* native) { cuda::set_scalars(native, scalars, values); });
  stream.submit([=] { *scalars = values; });
}

}  // namespace tessera::kernels
