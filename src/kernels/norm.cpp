// The squared norm, enqueued on CPU streams.
#include "tessera/kernels/norm.hpp"

#include "kernels/active_table.hpp"
#include "kernels/cpu/norm_lanes.hpp"
#include "kernels/cpu_only.hpp"

namespace tessera::kernels {

static_assert(norm_block == norm_block_elements);

void sum_of_squares(Stream& stream, const float* data, std::size_t count, double* result) {
  cpu_only(stream, "sum_of_squares").submit([=, run = active_table().sum_of_squares] { *result = run(data, count); });
}

}  // namespace tessera::kernels
