// A user's program with a layer of vision: the mean of an image's pixels under a kernel of ones, built against the
// installed tree.
#include <tessera/device/arena.hpp>
#include <tessera/device/stream.hpp>
#include <tessera/vision/convolution.hpp>
#include <tessera/vision/images.hpp>

#include <array>
#include <cstddef>
#include <cstdio>

namespace vision = tessera::vision;

int main() {
  const vision::ImageSet image({2, 2, 1}, {"dark", "light"}, {0, 1, 2, 3}, {1});
  const std::array<float, 4> x = {0.0f, 1.0f, 2.0f, 3.0f};
  const std::array<float, 4> weight = {1.0f, 1.0f, 1.0f, 1.0f};
  std::array<float, 1> y = {};
  const vision::ConvolutionShape shape{.in = 1, .out = 1, .kernel = 2};
  const std::size_t floats = vision::convolution_scratch<float>(shape, 1, 2);
  tessera::Arena scratch(tessera::Device::cpu(), tessera::Bytes((floats + 1) * sizeof(float)));
  tessera::Stream stream(tessera::Device::cpu(), {.name = "user"});
  vision::convolution_forward<float>(stream, {.shape = shape,
                                              .x = {x.data(), 1, 2, 2, 1},
                                              .weight = weight.data(),
                                              .y = {y.data(), 1, 1, 1, 1},
                                              .scratch = reinterpret_cast<float*>(scratch.data())});
  stream.synchronize();
  std::printf("%zu image of %zu pixels, whose sum is %g\n", image.size(), image.extents().elements(),
              static_cast<double>(y[0]));
  return y[0] == 6.0f ? 0 : 1;
}
