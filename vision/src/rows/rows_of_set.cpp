// All loops over rows of images of one instruction set, compiled as nn/src/rows/rows_of_set.cpp is.

#include "vision/src/rows/batch_norm_lanes.hpp"
#include "vision/src/rows/image_rows.hpp"
#include "vision/src/rows/max_pool_lanes.hpp"

namespace tessera::vision {

namespace {

struct Set {
  static constexpr std::size_t floats = TESSERA_FLOATS;
};

constexpr ImageRows table = {
    .max_pool = max_pool_lanes<Set>,
    .max_pool_gradients = max_pool_gradients_lanes<Set>,
    .batch_norm_sums = batch_norm_sums_lanes<Set>,
    .batch_norm_scale = batch_norm_scale_lanes<Set>,
};

}  // namespace

const ImageRows& TESSERA_ROWS() { return table; }

}  // namespace tessera::vision
