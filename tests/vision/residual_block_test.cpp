// Residual blocks: names, shapes and gradients, with and without a convolution on the shortcut.
#include "tessera/vision/residual_block.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>
#include <vector>

#include "reference.hpp"
#include "standalone.hpp"
#include "tessera/nn/counting_model.hpp"
#include "typed.hpp"

using namespace tessera;
using namespace tessera::nn;
using namespace tessera::vision;

namespace residual_block_test {

struct Form {
  std::string name;
  ResidualShape shape;
};
const std::vector<Form> forms = {{"basic", {.in = 3, .width = 3}},
                                 {"basic, smaller and wider", {.in = 2, .width = 3, .stride = 2}},
                                 {"bottleneck", {.in = 8, .width = 2, .bottleneck = true}},
                                 {"bottleneck, smaller", {.in = 3, .width = 2, .stride = 2, .bottleneck = true}}};

constexpr std::size_t images = 3;
constexpr HeightWidth size{5, 4};

template <typename T>
struct Run {
  explicit Run(const ResidualShape& shape) : block(shape), memory(block) {
    ActivationStack counting;
    CountingModel counting_windows;
    within(counting_windows, counting);
    stack.emplace(counting.peak());
  }

  // The loss is the sum of y times some numbers. The input's gradient stands in dx behind it.
  double within(tessera::StandInModel& windows, ActivationStack& on) {
    return windows.open(block, plan::WindowKind::forward).run([&](Window& window) { return pass(window, on); });
  }
  double pass(Window& window, ActivationStack& on) {
    const ScratchScope scope(on);
    const ImageView<const T> in{x.data(), images, size.height, size.width, block.shape().in};
    const ImageView<T> y = block.push_result(on, in);
    const auto saved = block.forward(window, on, in, y);
    const ImageView<T> dy{on.push<T>(y.elements()).data(), y.images, y.height, y.width, y.channels};
    if (!window.computes()) {
      block.backward(window, on, saved, dy, {nullptr, images, size.height, size.width, in.channels});
      return 0.0;
    }
    weights = random_elements<T>(y.elements(), 7);
    const std::vector<double> loss_of = widened(std::vector<T>(y.data, y.data + y.elements()));
    std::copy(weights.begin(), weights.end(), dy.data);
    block.backward(window, on, saved, dy, {dx.data(), images, size.height, size.width, in.channels});
    return dot(loss_of, widened(weights));
  }
  double value() {
    stack->poison();
    return within(memory, **stack);
  }

  ResidualBlock<T> block;
  Standalone<T> memory;
  std::optional<OwnStack> stack;
  std::vector<T> x = random_elements<T>(images * size.height * size.width * block.shape().in, 5);
  std::vector<T> dx = unset<T>(x.size());
  std::vector<T> weights;
};

TEST_CASE("residual_block_gradients_in_double_are_the_central_differences") {
  for (const Form& form : forms) {
    INFO(form.name);
    Run<double> run(form.shape);
    const auto loss = [&] { return run.value(); };
    const std::vector<double> expected = numeric_gradient(run.x, loss);
    std::vector<std::vector<double>> expected_of;
    for (auto& entry : run.memory.entries()) expected_of.push_back(numeric_gradient(entry.values, loss));
    run.value();
    check_elements(run.dx, expected, 1e-5);
    for (std::size_t i = 0; i < expected_of.size(); ++i) {
      INFO(run.memory.entries()[i].name);
      check_elements(run.memory.entries()[i].gradient, expected_of[i], 1e-5);
    }
  }
}

TEST_CASE("residual_blocks_have_torchvision_s_names") {
  ResidualBlock<float> basic({.in = 4, .width = 4});
  CHECK(Standalone<float>(basic).names() ==
        std::vector<std::string>{"conv1.weight", "bn1.weight", "bn1.bias", "conv2.weight", "bn2.weight", "bn2.bias"});
  ResidualBlock<float> bottleneck({.in = 4, .width = 2, .stride = 2, .bottleneck = true});
  Standalone<float> memory(bottleneck);
  CHECK(memory.names().size() == 12);
  CHECK(memory.entry("conv3.weight").parameter->shape() == Shape{8, 2, 1, 1});
  CHECK(memory.entry("downsample.0.weight").parameter->shape() == Shape{8, 4, 1, 1});
  CHECK(memory.entry("downsample.1.bias").parameter->shape() == Shape{8});
  CHECK(memory.buffers()[1].name == "downsample.1.running_var");
}

// The branch is nothing then: y = relu(x).
TEST_CASE("a_residual_block_may_start_as_its_shortcut") {
  for (const bool bottleneck : {false, true}) {
    ResidualBlock<float> block(
        {.in = 8, .width = bottleneck ? 2u : 8u, .bottleneck = bottleneck, .starts_as_shortcut = true});
    Standalone<float> memory(block);
    for (auto& entry : memory.entries()) {
      std::vector<float> values(entry.values.size());
      entry.parameter->initial().fill(values, 3, entry.name, 0);
      entry.values = values;
    }
    OwnStack stack(Bytes(1 << 20));
    std::vector<float> x = random_floats(2 * 9 * 8, 1), y(x.size());
    memory.forward(block, *stack, ImageView<const float>{x.data(), 2, 3, 3, 8}, ImageView<float>{y.data(), 2, 3, 3, 8});
    for (std::size_t i = 0; i < x.size(); ++i) CHECK(y[i] == std::max(x[i], 0.0f));
  }
}

}  // namespace residual_block_test
