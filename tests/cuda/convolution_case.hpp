// Convolutions on both kinds of device, for tests of what computes them.
#pragma once

#include <algorithm>
#include <vector>

#include "../nn/chosen.hpp"
#include "nn_device.hpp"
#include "tessera/vision/convolution.hpp"
#include "vision/src/cuda/convolution_choice.hpp"

namespace tessera::test {

// Chooses what computes convolutions on CUDA devices while it lives.
using WithConvolutions = Chosen<vision::cuda::convolutions::select, vision::cuda::convolutions::active>;

// Channels of eight take packs, others single elements.
struct ConvolutionForm {
  vision::ConvolutionShape shape;
  std::size_t images;
  vision::HeightWidth image;
};
inline const std::vector<ConvolutionForm> convolution_forms = {
    {{.in = 3, .out = 5, .kernel = 3, .padding = 1}, 2, {5, 7}},
    {{.in = 16, .out = 8, .kernel = 3, .stride = 2, .padding = 1}, 3, {8, 7}},
    {{.in = 4, .out = 3, .kernel = 1}, 3, {3, 2}},
    {{.in = 8, .out = 16, .kernel = 1, .stride = 2}, 3, {5, 4}},
    {{.in = 2, .out = 3, .kernel = {3, 2}, .stride = {2, 1}, .padding = {0, 1}}, 2, {7, 5}},
    {{.in = 2, .out = 2, .kernel = 3, .padding = 2, .dilation = 2}, 1, {6, 6}},
    {{.in = 6, .out = 4, .kernel = 3, .stride = 2, .padding = 1, .groups = 2}, 2, {5, 5}},
    {{.in = 16, .out = 16, .kernel = 1, .groups = 2}, 2, {3, 5}},
    {{.in = 5, .out = 5, .kernel = 3, .padding = 1, .groups = 5}, 2, {4, 4}},
    {{.in = 2, .out = 3, .kernel = 3}, 0, {4, 4}},
};

// The memory that the passes read and write, on either device.
template <typename T>
struct ConvolutionMemory {
  ConvolutionForm form;
  T *x, *weight, *bias, *dy, *y, *dx, *dweight, *dbias;
  float* scratch;

  vision::ImageView<T> in(T* data) const {
    return {data, form.images, form.image.height, form.image.width, form.shape.in};
  }
  vision::ImageView<T> out(T* data) const {
    const vision::HeightWidth size = form.shape.output(form.image);
    return {data, form.images, size.height, size.width, form.shape.out};
  }
};

template <typename T>
void both_passes(Stream& on, const ConvolutionMemory<T>& memory, bool with_bias, bool accumulate) {
  vision::convolution_forward<T>(on, {.shape = memory.form.shape,
                                      .x = memory.in(memory.x),
                                      .weight = memory.weight,
                                      .bias = with_bias ? memory.bias : nullptr,
                                      .y = memory.out(memory.y),
                                      .scratch = memory.scratch});
  vision::convolution_backward<T>(on, {.shape = memory.form.shape,
                                       .x = memory.in(memory.x),
                                       .weight = memory.weight,
                                       .dy = memory.out(memory.dy),
                                       .dx = memory.in(memory.dx),
                                       .dweight = memory.dweight,
                                       .dbias = memory.dbias,
                                       .accumulate = accumulate,
                                       .scratch = memory.scratch});
}

// Compares what passes(stream, memory) leaves with the CPU's. A library rounds results before a bias is added, and the
// gradient of 16-bit weights before it is added to another. On Hopper cuBLASLt rounds a product of 16 bits once before
// it adds it to what is there, where sums are `rounded_once_more`.
template <typename T, typename Passes>
void compare_convolutions(const ConvolutionForm& form, bool rounded_once_more, const Passes& passes) {
  const bool rounds_sums =
      sizeof(T) == 2 && vision::cuda::convolutions::active() == vision::cuda::convolutions::Set::cudnn;
  const double sums = rounds_sums ? rounding<T> : 2e-6;
  const vision::ConvolutionShape& shape = form.shape;
  const vision::HeightWidth result = shape.output(form.image);
  const std::size_t in = form.images * form.image.height * form.image.width * shape.in,
                    out = form.images * result.height * result.width * shape.out,
                    weights = shape.out * shape.in / shape.groups * shape.kernel.height * shape.kernel.width;
  compare_with_the_cpu(
      [&](Stream& on, auto*... memory) {
        passes(on, ConvolutionMemory<T>{form, memory...});
      },
      same(random_elements<T>(in, 1)), same(random_elements<T>(weights, 2)), same(random_elements<T>(shape.out, 3)),
      same(random_elements<T>(out, 4)), near(std::vector<T>(out), sums), near(std::vector<T>(in)),
      near(std::vector<T>(weights, T(0.5f)), rounded_once_more ? std::max(sums, 2.0 * rounding<T> + 2e-6) : sums),
      near(std::vector<T>(shape.out, T(0.25f))),
      Scratch{vision::convolution_scratch<T>(shape, form.images, form.image, DeviceKind::cpu),
              vision::convolution_scratch<T>(shape, form.images, form.image, DeviceKind::cuda)});
}

}  // namespace tessera::test
