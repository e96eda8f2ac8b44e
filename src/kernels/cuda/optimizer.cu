// Fused updates, operation by operation as optimizer.hpp writes them; what begin_update decided is read on the device.
#include "kernels/cuda/cuda_table.hpp"
#include "kernels/cuda/packs.cuh"

namespace tessera::kernels::cuda {
namespace {

using tessera::cuda::launch;
using Floats = View<Format::fp32>;

struct AdamWElements {
  AdamWSpans spans;
  float factor;
  float correction1;
  float correction2;
  AdamWSettings settings;

  __device__ void update(float& master, float& m, float& v, float gradient) const {
    const float g = gradient * factor;
    m = fmaf(settings.beta1, m, (1.0f - settings.beta1) * g);
    v = fmaf(settings.beta2, v, ((1.0f - settings.beta2) * g) * g);
    const float m_hat = m / correction1;
    const float v_hat = v / correction2;
    const float decayed = master * (1.0f - settings.learning_rate * settings.weight_decay);
    master = decayed - settings.learning_rate * (m_hat / (sqrtf(v_hat) + settings.epsilon));
  }
  __device__ void packed(std::size_t i) const {
    float master[pack], m[pack], v[pack], g[pack];
    Floats{spans.master}.get(i, master);
    Floats{spans.first_moment}.get(i, m);
    Floats{spans.second_moment}.get(i, v);
    Floats{const_cast<float*>(spans.gradient)}.get(i, g);
    for (std::size_t k = 0; k < pack; ++k) update(master[k], m[k], v[k], g[k]);
    Floats{spans.first_moment}.set(i, m);
    Floats{spans.second_moment}.set(i, v);
    Floats{spans.master}.set(i, master);
  }
  __device__ void single(std::size_t i) const {
    update(spans.master[i], spans.first_moment[i], spans.second_moment[i], spans.gradient[i]);
  }
};

__global__ void run_adamw(const AdamWSpans spans, const AdamWSettings settings, const StepScalars* scalars, bool packs) {
  if (scalars->skip != 0) return;
  const AdamWElements body{spans, scalars->gradient_factor, static_cast<float>(1.0 - scalars->decay_power[0]),
                           static_cast<float>(1.0 - scalars->decay_power[1]), settings};
  for_each_element(spans.count, packs, body);
}

template <bool with_velocity, bool nesterov>
struct SgdElements {
  SgdSpans spans;
  float factor;
  SgdSettings settings;

  __device__ void update(float& master, float& velocity, float gradient) const {
    const float g = fmaf(settings.weight_decay, master, gradient * factor);
    float direction = g;
    if constexpr (with_velocity) {
      velocity = fmaf(settings.momentum, velocity, g);
      direction = nesterov ? fmaf(settings.momentum, velocity, g) : velocity;
    }
    master = fmaf(-settings.learning_rate, direction, master);
  }
  __device__ void packed(std::size_t i) const {
    float master[pack], velocity[pack] = {}, g[pack];
    Floats{spans.master}.get(i, master);
    if constexpr (with_velocity) Floats{spans.velocity}.get(i, velocity);
    Floats{const_cast<float*>(spans.gradient)}.get(i, g);
    for (std::size_t k = 0; k < pack; ++k) update(master[k], velocity[k], g[k]);
    if constexpr (with_velocity) Floats{spans.velocity}.set(i, velocity);
    Floats{spans.master}.set(i, master);
  }
  __device__ void single(std::size_t i) const {
    float velocity = with_velocity ? spans.velocity[i] : 0.0f;
    update(spans.master[i], velocity, spans.gradient[i]);
    if constexpr (with_velocity) spans.velocity[i] = velocity;
  }
};

template <bool with_velocity, bool nesterov>
__global__ void run_sgd(const SgdSpans spans, const SgdSettings settings, const StepScalars* scalars, bool packs) {
  if (scalars->skip != 0) return;
  const SgdElements<with_velocity, nesterov> body{spans, scalars->gradient_factor, settings};
  for_each_element(spans.count, packs, body);
}

bool all_packed(const void* a, const void* b, const void* c, const void* d) {
  return packed<Format::fp32>(a) && packed<Format::fp32>(b) && packed<Format::fp32>(c) && packed<Format::fp32>(d);
}

}  // namespace

void adamw(void* native, const AdamWSpans& spans, const AdamWSettings& settings, const StepScalars* scalars) {
  if (spans.count == 0) return;
  const bool packs = all_packed(spans.master, spans.first_moment, spans.second_moment, spans.gradient);
  launch(native, launch_for(spans.count, packs), run_adamw, spans, settings, scalars, packs);
}

void sgd(void* native, const SgdSpans& spans, const SgdSettings& settings, const StepScalars* scalars) {
  if (spans.count == 0) return;
  const bool packs = all_packed(spans.master, spans.velocity, spans.gradient, spans.gradient);
  const auto kernel = spans.velocity == nullptr ? run_sgd<false, false>
                      : settings.nesterov       ? run_sgd<true, true>
                                                : run_sgd<true, false>;
  launch(native, launch_for(spans.count, packs), kernel, spans, settings, scalars, packs);
}

}  // namespace tessera::kernels::cuda
