// vision stands on nn: its sources call nn's elements, views, row loops and products by their plain names.
#pragma once

namespace tessera::nn::cuda {}

namespace tessera::vision {
using namespace nn;
namespace cuda {
using namespace nn::cuda;
}
}  // namespace tessera::vision
