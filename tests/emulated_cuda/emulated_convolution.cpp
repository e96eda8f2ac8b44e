// Convolutions of the emulated device by the formula, in place of cuDNN's: what is checked is where things stand. It
// overwrites its whole workspace.
#include "emulated_convolution.hpp"

#include <cstring>
#include <vector>

#include "cuda_runtime.h"
#include "emulated_elements.hpp"

namespace tessera::vision::cuda {

namespace {

// function(index of the image, of the weight, of the result) for each product of the convolution.
template <typename Function>
void for_each_product(const ConvolutionGeometry& of, const Function& function) {
  const std::size_t in = of.group_in();
  const std::size_t results = std::size_t{of.images} * of.y_of_image();
  for (std::size_t result = 0; result < results; ++result) {
    const std::size_t out = result % of.out;
    const std::size_t x = result / of.out % of.result.width;
    const std::size_t y = result / of.out / of.result.width % of.result.height;
    const std::size_t image = result / of.y_of_image();
    for (std::size_t i = 0; i < of.kernel.height; ++i) {
      for (std::size_t j = 0; j < of.kernel.width; ++j) {
        const std::size_t at_y = y * of.stride.height + i * of.dilation.height - of.padding.height;  // may wrap around
        const std::size_t at_x = x * of.stride.width + j * of.dilation.width - of.padding.width;
        if (at_y >= of.image.height || at_x >= of.image.width) continue;
        const std::size_t pixel = (image * of.image.height + at_y) * of.image.width + at_x;
        for (std::size_t c = 0; c < in; ++c) {
          function(pixel * of.in + out / of.group_out() * in + c,
                   ((out * of.kernel.height + i) * of.kernel.width + j) * in + c, result);
        }
      }
    }
  }
}

void compute(const LibraryConvolution& a) {
  const ConvolutionGeometry& of = a.of;
  const bool forward = a.direction == ConvolutionDirection::forward;
  const bool of_images = a.direction == ConvolutionDirection::image_gradient;
  std::vector<double> sums(forward     ? of.images * of.y_of_image()
                           : of_images ? of.images * of.x_of_image()
                                       : of.weights());
  const auto at = [&](const void* data, std::size_t i) { return static_cast<double>(get(a.format, data, i)); };
  for_each_product(of, [&](std::size_t image, std::size_t weight, std::size_t result) {
    if (forward) sums[result] += at(a.images, image) * at(a.weights, weight);
    if (of_images) sums[image] += at(a.results, result) * at(a.weights, weight);
    if (!forward && !of_images) sums[weight] += at(a.results, result) * at(a.images, image);
  });
  void* const to = const_cast<void*>(forward ? a.results : of_images ? a.images : a.weights);
  for (std::size_t i = 0; i < sums.size(); ++i) set(a.format, to, i, static_cast<float>(sums[i]));
}

bool run(void* native, const LibraryConvolution& a) {
  EmulatedConvolutions& state = emulated_convolutions();
  if (!state.has_kernels || a.workspace.bytes < state.workspace_bytes) return false;
  state.calls.push_back(a.direction);
  const cudaLaunchConfig_t one{dim3(1), dim3(1), 0, static_cast<cudaStream_t>(native)};
  ::emulated::launch(one, [a] {
    std::memset(a.workspace.data, 0xff, a.workspace.bytes);
    compute(a);
  });
  return true;
}

}  // namespace

EmulatedConvolutions& emulated_convolutions() {
  static EmulatedConvolutions state;
  return state;
}

const ConvolutionLibrary& convolution_library() {
  static const ConvolutionLibrary of_tests{.missing = {}, .in_words = "the tests' convolutions", .run = run};
  return of_tests;
}

}  // namespace tessera::vision::cuda
