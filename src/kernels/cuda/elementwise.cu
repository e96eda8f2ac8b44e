// Casts, sums and quotients, element by element: one pass over memory each.
#include "kernels/cuda/cuda_table.hpp"
#include "kernels/cuda/format_switch.hpp"
#include "kernels/cuda/packs.cuh"

namespace tessera::kernels::cuda {
namespace {

using tessera::cuda::launch;

template <Format to_format, Format from_format>
struct CastElements {
  View<to_format> to;
  View<from_format> from;

  __device__ void packed(std::size_t i) const {
    float values[pack];
    from.get(i, values);
    to.set(i, values);
  }
  __device__ void single(std::size_t i) const { to.set(i, from.get(i)); }
};

template <Format from_format>
struct AccumulateElements {
  View<Format::fp32> to;
  View<from_format> from;

  __device__ void packed(std::size_t i) const {
    float sum[pack];
    float values[pack];
    to.get(i, sum);
    from.get(i, values);
    for (std::size_t k = 0; k < pack; ++k) sum[k] = sum[k] + values[k];
    to.set(i, sum);
  }
  __device__ void single(std::size_t i) const { to.set(i, to.get(i) + from.get(i)); }
};

struct DivideElements {
  View<Format::fp32> data;
  float divisor;

  __device__ void packed(std::size_t i) const {
    float values[pack];
    data.get(i, values);
    for (std::size_t k = 0; k < pack; ++k) values[k] = values[k] / divisor;
    data.set(i, values);
  }
  __device__ void single(std::size_t i) const { data.set(i, data.get(i) / divisor); }
};

template <typename Body>
__global__ void run_elements(Body body, std::size_t count, bool packs) {
  for_each_element(count, packs, body);
}

template <typename Body>
void run(void* native, const Body& body, std::size_t count, bool packs) {
  if (count > 0) launch(native, launch_for(count, packs), run_elements<Body>, body, count, packs);
}

template <Format format>
View<format> view(const void* data) {
  return {static_cast<typename Stored<format>::Type*>(const_cast<void*>(data))};
}

__global__ void touch_bytes(std::byte* first, std::byte* last, bool write) {
  for (volatile std::byte* place : {first, last}) {
    const std::byte value = *place;
    if (write) *place = value;
  }
}

}  // namespace

void cast(void* native, const CastArguments& a) {
  for_format(a.to_format, [&](auto to) {
    for_format(a.from_format, [&](auto from) {
      constexpr Format t = decltype(to)::value;
      constexpr Format f = decltype(from)::value;
      const bool packs = packed<t>(a.to) && packed<f>(a.from);
      run(native, CastElements<t, f>{view<t>(a.to), view<f>(a.from)}, a.count, packs);
    });
  });
}

void accumulate(void* native, const AccumulateArguments& a) {
  for_format(a.from_format, [&](auto from) {
    constexpr Format f = decltype(from)::value;
    const bool packs = packed<Format::fp32>(a.to) && packed<f>(a.from);
    run(native, AccumulateElements<f>{{a.to}, view<f>(a.from)}, a.count, packs);
  });
}

void divide(void* native, float* data, float divisor, std::size_t count) {
  run(native, DivideElements{{data}, divisor}, count, packed<Format::fp32>(data));
}

void touch(void* native, std::byte* first, std::byte* last, bool write) {
  launch(native, {.threads = 1}, touch_bytes, first, last, write);
}

}  // namespace tessera::kernels::cuda
