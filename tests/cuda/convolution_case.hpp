// Convolutions on both kinds of device, for tests of what computes them.
#pragma once

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

template <typename T>
struct ConvolutionCase {
  explicit ConvolutionCase(const ConvolutionForm& of)
      : form(of),
        result(of.shape.output(of.image)),
        x(random_elements<T>(of.images * of.image.height * of.image.width * of.shape.in, 1)),
        weight(random_elements<T>(
            of.shape.out * of.shape.in / of.shape.groups * of.shape.kernel.height * of.shape.kernel.width, 2)),
        bias(random_elements<T>(of.shape.out, 3)),
        dy(random_elements<T>(of.images * result.height * result.width * of.shape.out, 4)),
        y(dy.size()),
        dx(x.size()),
        dweight(weight.size(), T(0.5f)),
        dbias(bias.size(), T(0.25f)) {}

  template <typename V>
  vision::ImageView<V> in(V* data) const {
    return {data, form.images, form.image.height, form.image.width, form.shape.in};
  }
  template <typename V>
  vision::ImageView<V> out(V* data) const {
    return {data, form.images, result.height, result.width, form.shape.out};
  }

  ConvolutionForm form;
  vision::HeightWidth result;
  std::vector<T> x, weight, bias, dy, y, dx, dweight, dbias;
};

template <typename T>
struct ConvolutionOnDevice {
  ConvolutionOnDevice(DeviceKind kind, const ConvolutionCase<T>& c)
      : x(kind, c.x),
        weight(kind, c.weight),
        bias(kind, c.bias),
        dy(kind, c.dy),
        y(kind, c.y.size()),
        dx(kind, c.x.size()),
        dweight(kind, c.dweight),
        dbias(kind, c.dbias),
        scratch(kind, vision::convolution_scratch<T>(c.form.shape, c.form.images, c.form.image, kind)) {}

  void take_to(ConvolutionCase<T>& c) {
    for (const bool intact : {y.guards_intact(), dx.guards_intact(), dweight.guards_intact(), dbias.guards_intact(),
                              scratch.guards_intact()}) {
      CHECK(intact);
    }
    c.y = y.values(), c.dx = dx.values(), c.dweight = dweight.values(), c.dbias = dbias.values();
  }

  DeviceBuffer<T> x, weight, bias, dy, y, dx, dweight, dbias;
  DeviceBuffer<float> scratch;
};

template <typename T>
void run(DeviceKind kind, ConvolutionCase<T>& c, bool with_bias, bool accumulate) {
  Stream stream = stream_on(kind);
  ConvolutionOnDevice<T> on(kind, c);
  vision::convolution_forward<T>(stream, {.shape = c.form.shape,
                                          .x = c.template in<const T>(on.x.data()),
                                          .weight = on.weight.data(),
                                          .bias = with_bias ? on.bias.data() : nullptr,
                                          .y = c.out(on.y.data()),
                                          .scratch = on.scratch.data()});
  vision::convolution_backward<T>(stream, {.shape = c.form.shape,
                                           .x = c.template in<const T>(on.x.data()),
                                           .weight = on.weight.data(),
                                           .dy = c.template out<const T>(on.dy.data()),
                                           .dx = c.in(on.dx.data()),
                                           .dweight = on.dweight.data(),
                                           .dbias = on.dbias.data(),
                                           .accumulate = accumulate,
                                           .scratch = on.scratch.data()});
  stream.synchronize();
  on.take_to(c);
}

// A library rounds results before a bias is added, and the gradient of 16-bit weights before it is added to another.
// On Hopper cuBLASLt rounds a product of 16 bits once before it adds it to what is there, `accumulate`.
template <typename T>
void check_near_all(const ConvolutionCase<T>& computed, const ConvolutionCase<T>& expected, bool accumulate = false) {
  const bool rounds_sums =
      sizeof(T) == 2 && vision::cuda::convolutions::active() == vision::cuda::convolutions::Set::cudnn;
  const double sums = rounds_sums ? rounding<T> : 2e-6;
  check_near(computed.y, expected.y, sums);
  check_near(computed.dx, expected.dx);
  check_near(computed.dweight, expected.dweight, accumulate ? std::max(sums, 2.0 * rounding<T> + 2e-6) : sums);
  check_near(computed.dbias, expected.dbias);
}

}  // namespace tessera::test
