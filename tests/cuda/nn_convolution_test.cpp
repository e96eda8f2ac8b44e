// Convolutions on CUDA devices against the CPU's.
#include "nn_device.hpp"
#include "src/cuda/vision_layers.hpp"
#include "src/rows/active_rows.hpp"
#include "tessera/base/error.hpp"
#include "tessera/nn/convolution.hpp"

using namespace tessera;
using namespace tessera::nn;
using namespace tessera::test;

namespace nn_convolution_test {

// Channels of eight take packs, others single elements.
struct Form {
  ConvolutionShape shape;
  std::size_t images;
  HeightWidth image;
};
const std::vector<Form> forms = {
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
struct Case {
  explicit Case(const Form& of)
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
  ImageView<V> in(V* data) const {
    return {data, form.images, form.image.height, form.image.width, form.shape.in};
  }
  template <typename V>
  ImageView<V> out(V* data) const {
    return {data, form.images, result.height, result.width, form.shape.out};
  }

  Form form;
  HeightWidth result;
  std::vector<T> x, weight, bias, dy, y, dx, dweight, dbias;
};

template <typename T>
void run_on_cpu(Case<T>& c, bool with_bias, bool accumulate) {
  Stream host = host_stream();
  Arena scratch(Device::cpu(),
                Bytes((convolution_scratch<T>(c.form.shape, c.form.images, c.form.image) + 16) * sizeof(float)));
  auto* const room = reinterpret_cast<float*>(scratch.data());
  convolution_forward<T>(host, {.shape = c.form.shape,
                                .x = c.template in<const T>(c.x.data()),
                                .weight = c.weight.data(),
                                .bias = with_bias ? c.bias.data() : nullptr,
                                .y = c.out(c.y.data()),
                                .scratch = room});
  convolution_backward<T>(host, {.shape = c.form.shape,
                                 .x = c.template in<const T>(c.x.data()),
                                 .weight = c.weight.data(),
                                 .dy = c.template out<const T>(c.dy.data()),
                                 .dx = c.in(c.dx.data()),
                                 .dweight = c.dweight.data(),
                                 .dbias = c.dbias.data(),
                                 .accumulate = accumulate,
                                 .scratch = room});
}

template <typename T>
struct OnDevice {
  explicit OnDevice(const Case<T>& c)
      : x(c.x),
        weight(c.weight),
        bias(c.bias),
        dy(c.dy),
        y(c.y.size()),
        dx(c.x.size()),
        dweight(c.dweight),
        dbias(c.dbias),
        scratch(convolution_scratch<T>(c.form.shape, c.form.images, c.form.image, DeviceKind::cuda)) {}

  void take_to(Case<T>& c) {
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
void run_on_cuda(Case<T>& c, bool with_bias, bool accumulate) {
  Stream stream = cuda_stream();
  OnDevice<T> on(c);
  convolution_forward<T>(stream, {.shape = c.form.shape,
                                  .x = c.template in<const T>(on.x.data()),
                                  .weight = on.weight.data(),
                                  .bias = with_bias ? on.bias.data() : nullptr,
                                  .y = c.out(on.y.data()),
                                  .scratch = on.scratch.data()});
  convolution_backward<T>(stream, {.shape = c.form.shape,
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

template <typename T>
void check_near_all(const Case<T>& computed, const Case<T>& expected) {
  check_near(computed.y, expected.y);
  check_near(computed.dx, expected.dx);
  check_near(computed.dweight, expected.dweight);
  check_near(computed.dbias, expected.dbias);
}

TEST_CASE_TEMPLATE("cuda: convolutions and their gradients are near the CPU's", T, TESSERA_CUDA_ELEMENTS) {
  for (std::size_t i = 0; i < forms.size(); ++i) {
    for (const bool with : {false, true}) {
      CAPTURE(i);
      CAPTURE(with);
      Case<T> expected(forms[i]), computed(forms[i]);
      run_on_cpu(expected, with, with);
      run_on_cuda(computed, with, with);
      check_near_all(computed, expected);
    }
  }
}

ConvolutionGeometry geometry_of(const Form& form) {
  const auto pair = [](HeightWidth of) {
    return Pair32{static_cast<std::uint32_t>(of.height), static_cast<std::uint32_t>(of.width)};
  };
  const ConvolutionShape& s = form.shape;
  return {.images = static_cast<std::uint32_t>(form.images),
          .image = pair(form.image),
          .result = pair(s.output(form.image)),
          .in = static_cast<std::uint32_t>(s.in),
          .out = static_cast<std::uint32_t>(s.out),
          .kernel = pair(s.kernel),
          .stride = pair(s.stride),
          .padding = pair(s.padding),
          .dilation = pair(s.dilation),
          .groups = static_cast<std::uint32_t>(s.groups)};
}

// As where the kernel sees more of a batch than fits.
template <typename T>
void run_in_parts(Case<T>& c, std::uint32_t images_at_once) {
  Stream stream = cuda_stream();
  OnDevice<T> on(c);
  const cuda::ConvolutionTask task{
      .format = format_of<T>, .tf32 = false, .images_at_once = images_at_once, .of = geometry_of(c.form)};
  const cuda::ConvolutionForwardRows forward{.task = task,
                                             .x = on.x.data(),
                                             .weight = on.weight.data(),
                                             .bias = on.bias.data(),
                                             .y = on.y.data(),
                                             .scratch = on.scratch.data()};
  const cuda::ConvolutionBackwardRows backward{.task = task,
                                               .x = on.x.data(),
                                               .weight = on.weight.data(),
                                               .dy = on.dy.data(),
                                               .dx = on.dx.data(),
                                               .dweight = on.dweight.data(),
                                               .dbias = on.dbias.data(),
                                               .accumulate = true,
                                               .scratch = on.scratch.data()};
  stream.submit([native = native_stream(stream), forward] { cuda::convolution_forward(native, forward); });
  stream.submit([native = native_stream(stream), backward] { cuda::convolution_backward(native, backward); });
  stream.synchronize();
  on.take_to(c);
}

TEST_CASE_TEMPLATE("cuda: some images at a time make the convolution of all", T, TESSERA_CUDA_ELEMENTS) {
  for (const Form& form : {Form{{.in = 8, .out = 5, .kernel = 3, .padding = 1}, 5, {4, 5}},
                           Form{{.in = 6, .out = 4, .kernel = 2, .groups = 2}, 5, {3, 4}}}) {
    for (const std::uint32_t at_once : {1u, 2u, 5u}) {
      CAPTURE(at_once);
      Case<T> expected(form), computed(form);
      run_on_cpu(expected, true, true);
      run_in_parts(computed, at_once);
      check_near_all(computed, expected);
    }
  }
}

TEST_CASE("cuda: convolutions of double, and of images that are too large, are refused") {
  Stream stream = cuda_stream();
  std::vector<double> some(9);
  CHECK_THROWS_WITH_AS(convolution_forward<double>(stream, {.shape = {.in = 1, .out = 1, .kernel = 1},
                                                            .x = {some.data(), 1, 3, 3, 1},
                                                            .weight = some.data(),
                                                            .y = {some.data(), 1, 3, 3, 1},
                                                            .scratch = nullptr}),
                       doctest::Contains("convolution: elements of type double are for the CPU alone"),
                       UnavailableError);
  CHECK_THROWS_WITH_AS(convolution_forward<float>(stream, {.shape = {.in = 64, .out = 1, .kernel = 3, .padding = 1},
                                                           .x = {nullptr, 1, 2000, 2000, 64},
                                                           .weight = nullptr,
                                                           .y = {nullptr, 1, 2000, 2000, 1},
                                                           .scratch = nullptr}),
                       doctest::Contains("fewer than 2^31"), UsageError);
}

}  // namespace nn_convolution_test
