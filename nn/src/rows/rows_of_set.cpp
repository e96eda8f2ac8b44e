// All row loops of one instruction set. The build compiles this once for each, with its flags; TESSERA_ROWS names the
// function that hands them out, TESSERA_FLOATS says how many floats a register holds.

#include "src/rows/attention_lanes.hpp"
#include "src/rows/dropout_lanes.hpp"
#include "src/rows/exponential_lanes.hpp"
#include "src/rows/layer_norm_lanes.hpp"
#include "src/rows/plain_lanes.hpp"
#include "src/rows/rectifier_lanes.hpp"

namespace tessera::nn {

namespace {

struct Set {
  static constexpr std::size_t floats = TESSERA_FLOATS;
};

constexpr RowTable table = {
    .relu = relu_lanes<Set>,
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
    .layer_norm_parameters = layer_norm_parameters_lanes<Set>,
    .layer_norm_input = layer_norm_input_lanes<Set>,
};

}  // namespace

const RowTable& TESSERA_ROWS() { return table; }

}  // namespace tessera::nn
