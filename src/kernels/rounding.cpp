// Enqueues stochastic rounding on the streams of any device.
#include "tessera/kernels/rounding.hpp"

#include "kernels/cuda/cuda_table.hpp"
#include "kernels/dispatch.hpp"

namespace tessera::kernels {

void round_stochastically(Stream& stream, RoundedSpans spans, const StepScalars* scalars) {
  if (spans.count == 0) return;
  if (on_cuda(stream)) {
    return issue(stream, [=](void* native) { cuda::round_stochastically(native, spans, scalars); });
  }
  stream.submit([=] {
    const auto step = static_cast<std::uint64_t>(scalars->step);
    parallel::in_shares(shares_of_elements(spans.count), [&](std::size_t begin, std::size_t end, std::size_t) {
      active_table().round({.to = &spans.to[begin].bits,
                            .from = spans.from + begin,
                            .count = end - begin,
                            .key = {spans.key[0], spans.key[1]},
                            .first = spans.first + begin,
                            .step = step});
    });
  });
}

}  // namespace tessera::kernels
