// Convolutions against plain loops in double precision and against central differences, by products and by oneDNN.
#include "tessera/vision/convolution.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "chosen.hpp"
#include "instruction_sets.hpp"
#include "product_sets.hpp"
#include "reference.hpp"
#include "standalone.hpp"
#include "tessera/base/error.hpp"
#include "tessera/nn/counting_model.hpp"
#include "tessera/nn/threads.hpp"
#include "typed.hpp"
#include "vision/src/convolution/choice.hpp"

using namespace tessera;
using namespace tessera::nn;
using namespace tessera::vision;

namespace convolution_test {

using WithConvolutions = Chosen<convolutions::select, convolutions::active>;

struct Case {
  std::string name;
  ConvolutionShape shape;
  std::size_t images;
  HeightWidth image;
};

const std::vector<Case>& cases() {
  static const std::vector<Case> all{
      {"three by three", {.in = 3, .out = 5, .kernel = 3, .padding = 1}, 2, {5, 7}},
      {"one pixel", {.in = 4, .out = 3, .kernel = 1}, 3, {3, 2}},
      {"one pixel of every second", {.in = 4, .out = 3, .kernel = 1, .stride = 2}, 3, {5, 4}},
      {"two sizes", {.in = 2, .out = 3, .kernel = {3, 2}, .stride = {2, 1}, .padding = {0, 1}}, 2, {7, 5}},
      {"dilated", {.in = 2, .out = 2, .kernel = 3, .padding = 2, .dilation = 2}, 1, {6, 6}},
      {"groups", {.in = 6, .out = 4, .kernel = 3, .stride = 2, .padding = 1, .groups = 2}, 2, {5, 5}},
      {"each channel by itself", {.in = 5, .out = 5, .kernel = 3, .padding = 1, .groups = 5}, 2, {4, 4}},
      {"sixteen channels", {.in = 16, .out = 32, .kernel = 3, .padding = 1}, 3, {8, 8}},
      {"no images", {.in = 2, .out = 3, .kernel = 3}, 0, {4, 4}},
      {"the whole image", {.in = 3, .out = 4, .kernel = {4, 5}}, 2, {4, 5}},
  };
  return all;
}

// Everything of one convolution, in T, and what plain loops in double make of the same numbers.
template <typename T>
struct Data {
  explicit Data(const Case& of)
      : c(of),
        result(of.shape.output(of.image)),
        x(random_elements<T>(of.images * of.image.height * of.image.width * of.shape.in, 1)),
        weight(random_elements<T>(of.shape.out * depth(), 2)),
        bias(random_elements<T>(of.shape.out, 3)),
        dy(random_elements<T>(of.images * result.height * result.width * of.shape.out, 4)) {}

  std::size_t depth() const { return c.shape.in / c.shape.groups * c.shape.kernel.height * c.shape.kernel.width; }
  template <typename V>
  ImageView<V> in(std::vector<std::remove_const_t<V>>& data) const {
    return {data.data(), c.images, c.image.height, c.image.width, c.shape.in};
  }
  template <typename V>
  ImageView<V> out(std::vector<std::remove_const_t<V>>& data) const {
    return {data.data(), c.images, result.height, result.width, c.shape.out};
  }

  // function(index of y, index of weight, index of x) for each product.
  template <typename Function>
  void for_each_product(const Function& function) const {
    const ConvolutionShape& s = c.shape;
    const std::size_t in_group = s.in / s.groups;
    const std::size_t out_group = s.out / s.groups;
    for (std::size_t n = 0; n < c.images; ++n)
      for (std::size_t oy = 0; oy < result.height; ++oy)
        for (std::size_t ox = 0; ox < result.width; ++ox)
          for (std::size_t o = 0; o < s.out; ++o)
            for (std::size_t i = 0; i < s.kernel.height; ++i)
              for (std::size_t j = 0; j < s.kernel.width; ++j)
                for (std::size_t channel = 0; channel < in_group; ++channel) {
                  const std::size_t iy = oy * s.stride.height + i * s.dilation.height;
                  const std::size_t ix = ox * s.stride.width + j * s.dilation.width;
                  if (iy < s.padding.height || iy - s.padding.height >= c.image.height) continue;
                  if (ix < s.padding.width || ix - s.padding.width >= c.image.width) continue;
                  const std::size_t pixel =
                      (n * c.image.height + iy - s.padding.height) * c.image.width + ix - s.padding.width;
                  function(((n * result.height + oy) * result.width + ox) * s.out + o,
                           ((o * in_group + channel) * s.kernel.height + i) * s.kernel.width + j,
                           pixel * s.in + o / out_group * in_group + channel);
                }
  }

  std::vector<double> expected_y(bool with_bias) const {
    const auto wide_x = widened(x), wide_weight = widened(weight), wide_bias = widened(bias);
    std::vector<double> y(dy.size(), 0.0);
    for (std::size_t i = 0; with_bias && i < y.size(); ++i) y[i] = wide_bias[i % c.shape.out];
    for_each_product([&](std::size_t to, std::size_t w, std::size_t from) { y[to] += wide_weight[w] * wide_x[from]; });
    return y;
  }
  struct Gradients {
    std::vector<double> x, weight, bias;
  };
  Gradients expected_gradients() const {
    const auto wide_x = widened(x), wide_weight = widened(weight), wide_dy = widened(dy);
    Gradients g{std::vector<double>(x.size()), std::vector<double>(weight.size()), std::vector<double>(bias.size())};
    for_each_product([&](std::size_t y, std::size_t w, std::size_t from) {
      g.x[from] += wide_weight[w] * wide_dy[y];
      g.weight[w] += wide_x[from] * wide_dy[y];
    });
    for (std::size_t i = 0; i < wide_dy.size(); ++i) g.bias[i % c.shape.out] += wide_dy[i];
    return g;
  }

  std::vector<float> scratch() const {
    return std::vector<float>(convolution_scratch<T>(c.shape, c.images, c.image) + 16, -1e30f);
  }

  Case c;
  HeightWidth result;
  std::vector<T> x, weight, bias, dy;
};

// 64-byte aligned, as the activation stack hands it out.
float* aligned(std::vector<float>& scratch) {
  const auto at = reinterpret_cast<std::uintptr_t>(scratch.data());
  return reinterpret_cast<float*>((at + 63) / 64 * 64);
}

template <typename T>
std::vector<T> forward(Data<T>& d, bool with_bias) {
  Stream stream = immediate_stream();
  std::vector<T> y = unset<T>(d.dy.size());
  std::vector<float> scratch = d.scratch();
  convolution_forward<T>(stream, {.shape = d.c.shape,
                                  .x = d.template in<const T>(d.x),
                                  .weight = d.weight.data(),
                                  .bias = with_bias ? d.bias.data() : nullptr,
                                  .y = d.template out<T>(y),
                                  .scratch = aligned(scratch)});
  return y;
}

template <typename T>
struct Gradients {
  std::vector<T> x, weight, bias;
};

template <typename T>
Gradients<T> backward(Data<T>& d, bool accumulate) {
  Stream stream = immediate_stream();
  Gradients<T> g{unset<T>(d.x.size()), unset<T>(d.weight.size()), unset<T>(d.bias.size())};
  if (accumulate) {
    g.weight = d.weight;
    g.bias = d.bias;
  }
  std::vector<float> scratch = d.scratch();
  convolution_backward<T>(stream, {.shape = d.c.shape,
                                   .x = d.template in<const T>(d.x),
                                   .weight = d.weight.data(),
                                   .dy = d.template out<const T>(d.dy),
                                   .dx = d.template in<T>(g.x),
                                   .dweight = g.weight.data(),
                                   .dbias = g.bias.data(),
                                   .accumulate = accumulate,
                                   .scratch = aligned(scratch)});
  return g;
}

std::vector<double> plus(std::vector<double> a, const std::vector<double>& b) {
  for (std::size_t i = 0; i < a.size(); ++i) a[i] += b[i];
  return a;
}

template <typename Function>
void with_every_set_and_case(const Function& function) {
  for (const convolutions::Set set : convolutions::available()) {
    const WithConvolutions with(set);
    for (const Case& each : cases()) {
      INFO(to_string(set), ", ", each.name);
      function(each);
    }
  }
}

TEST_CASE_TEMPLATE("convolution_forward_is_the_formula", T, TESSERA_ALL_ELEMENTS) {
  with_every_set_and_case([](const Case& each) {
    Data<T> d(each);
    check_elements(forward(d, true), d.expected_y(true));
    check_elements(forward(d, false), d.expected_y(false));
  });
}

TEST_CASE_TEMPLATE("convolution_gradients_are_the_formula", T, TESSERA_ALL_ELEMENTS) {
  with_every_set_and_case([](const Case& each) {
    Data<T> d(each);
    const auto expected = d.expected_gradients();
    const Gradients<T> computed = backward(d, false);
    check_elements(computed.x, expected.x);
    check_elements(computed.weight, expected.weight);
    check_elements(computed.bias, expected.bias);
    const Gradients<T> added = backward(d, true);
    check_elements(added.weight, plus(expected.weight, widened(d.weight)));
    check_elements(added.bias, plus(expected.bias, widened(d.bias)), 3 * tolerance<T>());
  });
}

TEST_CASE("convolution_gradients_are_those_of_central_differences") {
  for (const Case& each : cases()) {
    INFO(each.name);
    Data<double> d(each);
    const Gradients<double> computed = backward(d, false);
    const auto loss = [&] { return dot(forward(d, true), d.dy); };
    check_elements(computed.x, numeric_gradient(d.x, loss), 1e-6);
    check_elements(computed.weight, numeric_gradient(d.weight, loss), 1e-6);
    check_elements(computed.bias, numeric_gradient(d.bias, loss), 1e-6);
  }
}

// Beyond what the matrix of a part may have, so that lines are cut within images and between them.
TEST_CASE_TEMPLATE("convolution_by_products_of_large_images_is_cut", T, float, bf16) {
  const WithConvolutions products(convolutions::Set::products);
  for (const Case& each : {Case{"within images", {.in = 48, .out = 3, .kernel = 5, .padding = 2}, 2, {36, 31}},
                           Case{"between images", {.in = 48, .out = 3, .kernel = 3, .groups = 3}, 40, {12, 13}}}) {
    INFO(each.name);
    Data<T> d(each);
    const double sums = 40 * tolerance<T>();  // of a thousand terms
    check_elements(forward(d, true), d.expected_y(true), sums);
    const auto expected = d.expected_gradients();
    const Gradients<T> computed = backward(d, false);
    check_elements(computed.x, expected.x, sums);
    check_elements(computed.weight, expected.weight, sums);
  }
}

TEST_CASE("convolution_by_products_has_the_same_bits_on_any_number_of_threads") {
  const WithConvolutions products(convolutions::Set::products);
  if (active_product_set() == ProductSet::openblas) return;  // whose bits depend on it
  const Case wide{"wide", {.in = 64, .out = 48, .kernel = 3, .padding = 1}, 5, {17, 13}};
  Data<float> d(wide);
  check_same_bits_on_threads([&] {
    const Gradients<float> g = backward(d, false);
    return bytes_of(forward(d, true), g.x, g.weight, g.bias);
  });
}

TEST_CASE("convolution_by_onednn_shares_images_among_threads") {
  for (const convolutions::Set set : convolutions::available()) {
    const WithConvolutions with(set);
    for (const int threads : {2, 3, 7}) {
      set_threads(threads);
      for (const Case& each : cases()) {
        INFO(to_string(set), ", ", threads, ", ", each.name);
        Data<float> d(each);
        check_elements(forward(d, true), d.expected_y(true));
        const auto expected = d.expected_gradients();
        const Gradients<float> computed = backward(d, true);
        check_elements(computed.x, expected.x);
        check_elements(computed.weight, plus(expected.weight, widened(d.weight)));
      }
    }
    set_threads(1);
  }
}

TEST_CASE("convolution_module_has_pytorch_s_names_and_shapes") {
  Convolution<float> layer({.in = 6, .out = 4, .kernel = {3, 2}, .padding = 1, .groups = 2});
  Standalone<float> standalone(layer);
  CHECK(standalone.names() == std::vector<std::string>{"weight", "bias"});
  CHECK(standalone.entry("weight").parameter->shape() == Shape{4, 3, 3, 2});
  CHECK(standalone.entry("bias").parameter->shape() == Shape{4});
  Convolution<float> without({.in = 6, .out = 4, .kernel = 3}, {.bias = false});
  CHECK(Standalone<float>(without).names() == std::vector<std::string>{"weight"});
}

TEST_CASE("convolution_module_counts_what_it_takes") {
  Convolution<float> layer({.in = 3, .out = 4, .kernel = 3, .stride = 2, .padding = 1});
  Standalone<float> standalone(layer);
  std::vector<float> x = random_floats(2 * 7 * 5 * 3, 1);
  const auto pass = [&](auto& model, ActivationStack& stack) {
    const ImageView<const float> image{x.data(), 2, 7, 5, 3};
    const ImageView<float> y = layer.push_result(stack, image);
    CHECK(y.size() == HeightWidth{4, 3});
    const auto saved = model.forward(layer, stack, image, y);
    const ImageView<float> dx{stack.push<float>(x.size()).data(), 2, 7, 5, 3};
    model.backward(layer, stack, saved, y, dx);
    return std::vector<float>(dx.data, dx.data + (stack.counts_only() ? 0 : x.size()));
  };
  ActivationStack counting;
  CountingModel counting_windows;
  pass(counting_windows, counting);
  OwnStack stack(counting.peak());
  const std::vector<float> dx = pass(standalone, *stack);
  CHECK((*stack).peak() == counting.peak());
  for (const float each : dx) CHECK(std::isfinite(each));
}

TEST_CASE("convolution_refuses_what_does_not_fit") {
  using doctest::Contains;
  const ConvolutionShape shape{.in = 2, .out = 3, .kernel = 5, .padding = 1};
  CHECK_THROWS_WITH_AS(shape.output({2, 9}), Contains("images of 2 x 9, padded by 1 x 1, are smaller than the kernel"),
                       UsageError);
  CHECK_THROWS_WITH_AS((Convolution<float>({.in = 5, .out = 4, .kernel = 1, .groups = 2})),
                       Contains("2 groups must divide 5 input and 4 output channels"), UsageError);
  CHECK_THROWS_WITH_AS((Convolution<float>({.in = 5, .out = 4, .kernel = 1, .stride = 0})), Contains("above 0"),
                       UsageError);
  Stream stream = immediate_stream();
  std::vector<float> data(1000);
  const auto call = [&](HeightWidth y, std::size_t channels) {
    convolution_forward<float>(stream, {.shape = shape,
                                        .x = {data.data(), 1, 6, 6, 2},
                                        .weight = data.data(),
                                        .y = {data.data(), 1, y.height, y.width, channels},
                                        .scratch = data.data()});
  };
  CHECK_THROWS_WITH_AS(call(6, 3), Contains("y must be 1 images of 4 x 4 with 3 channels, but is 1 of 6 x 6 with 3"),
                       UsageError);
  CHECK_THROWS_AS(call(4, 2), UsageError);
}

}  // namespace convolution_test
