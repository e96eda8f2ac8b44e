// Muon's elementwise parts, enqueued on the streams of any device. Products take far longer, so the compiler's own
// vectors are enough on the CPU.
#include "tessera/kernels/muon.hpp"

#include <algorithm>
#include <cmath>

#include "kernels/cuda/cuda_table.hpp"
#include "kernels/dispatch.hpp"

namespace tessera::kernels {

namespace {

template <typename Element>
void for_each_shared(std::size_t count, const Element& element) {
  parallel::in_shares(shares_of_elements(count), [&](std::size_t begin, std::size_t end, std::size_t) {
    for (std::size_t i = begin; i < end; ++i) element(i);
  });
}

}  // namespace

void muon_direction(Stream& stream, MuonSpans spans, MuonSettings settings, const StepScalars* scalars) {
  if (spans.count == 0) return;
  if (on_cuda(stream)) {
    return issue(stream, [=](void* native) { cuda::muon_direction(native, spans, settings, scalars); });
  }
  stream.submit([=] {
    if (scalars->skip != 0) return;
    const float factor = scalars->gradient_factor, rest = 1.0f - settings.momentum;
    for_each_shared(spans.count, [&](std::size_t i) {
      const float g = spans.gradient[i] * factor;
      const float m = spans.momentum[i] + rest * (g - spans.momentum[i]);
      spans.momentum[i] = m;
      spans.direction[i] = bf16(settings.nesterov ? m + rest * (g - m) : m);
    });
  });
}

void muon_apply(Stream& stream, float* master, const bf16* direction, std::size_t count, MuonStep step,
                const StepScalars* scalars) {
  if (count == 0) return;
  if (on_cuda(stream)) {
    return issue(stream, [=](void* native) { cuda::muon_apply(native, master, direction, count, step, scalars); });
  }
  stream.submit([=] {
    if (scalars->skip != 0) return;
    const float keep = 1.0f - step.learning_rate * step.weight_decay, rate = step.learning_rate * step.scale;
    for_each_shared(count, [&](std::size_t i) {
      const float kept = master[i] * keep;
      master[i] = kept - rate * static_cast<float>(direction[i]);
    });
  });
}

void divide_by_norm(Stream& stream, const NormedMatrices& of) {
  if (of.count == 0 || of.matrices == 0) return;
  if (on_cuda(stream)) return issue(stream, [of](void* native) { cuda::divide_by_norm(native, of); });
  stream.submit([of] {
    for (std::size_t n = 0; n < of.matrices; ++n) {
      bf16* const x = of.x + n * of.stride;
      const float norm = std::max(static_cast<float>(std::sqrt(of.squares[n])), of.least);
      for_each_shared(of.count, [&](std::size_t i) { x[i] = bf16(static_cast<float>(x[i]) / norm); });
    }
  });
}

void combine(Stream& stream, Combination of) {
  if (of.count == 0) return;
  if (on_cuda(stream)) return issue(stream, [of](void* native) { cuda::combine(native, of); });
  stream.submit([of] {
    for_each_shared(of.count, [&](std::size_t i) {
      of.to[i] = bf16(of.a * static_cast<float>(of.x[i]) + of.b * static_cast<float>(of.y[i]));
    });
  });
}

}  // namespace tessera::kernels
