// All row loops of one instruction set.
#pragma once

#include "src/rows/attention_lanes.hpp"
#include "src/rows/dropout_lanes.hpp"
#include "src/rows/gelu_lanes.hpp"
#include "src/rows/layer_norm_lanes.hpp"
#include "src/rows/panel_lanes.hpp"
#include "src/rows/softmax_lanes.hpp"
#include "src/rows/sum_lanes.hpp"

namespace tessera::nn {

template <typename Set>
inline constexpr RowTable table_of_rows = {
    .gelu = gelu_lanes<Set>,
    .softmax_sum = softmax_sum_lanes<Set>,
    .softmax_scaled = softmax_scaled_lanes<Set>,
    .attention_rows = attention_rows_lanes<Set>,
    .load_panel = load_panel_lanes<Set>,
    .store_panel = store_panel_lanes<Set>,
    .add = add_lanes<Set>,
    .sum_rows = sum_rows_lanes<Set>,
    .dropout = dropout_lanes<Set>,
    .layer_norm_forward = layer_norm_forward_lanes<Set>,
    .layer_norm_backward = layer_norm_backward_lanes<Set>,
};

}  // namespace tessera::nn
