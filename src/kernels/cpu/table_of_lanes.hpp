// All kernels of one instruction set, from its vector type.
#pragma once

#include "kernels/cpu/elementwise_lanes.hpp"
#include "kernels/cpu/norm_lanes.hpp"
#include "kernels/cpu/optimizer_lanes.hpp"
#include "kernels/cpu/reduce_lanes.hpp"

namespace tessera::kernels {

template <typename Lanes>
inline constexpr KernelTable table_of_lanes = {
    .cast = cast_lanes<Lanes>,
    .copy = copy_lanes<Lanes>,
    .accumulate = accumulate_lanes<Lanes>,
    .divide = divide_lanes<Lanes>,
    .sum_of_squares = sum_of_squares_lanes<Lanes>,
    .ranked_sum = ranked_sum_lanes<Lanes>,
    .adamw = adamw_lanes<Lanes>,
    .sgd = sgd_lanes<Lanes>,
};

}  // namespace tessera::kernels
