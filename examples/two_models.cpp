// Two models that train each other: each learns from the samples and from what the other one says of them. Two
// FullyShards share a World; each has windows, plan, memory and optimizer of its own, and every rank calls them in the
// same order. At the end a gradient passes through one of them that is not updated. Try: ./two_models --ranks 3
#include <bit>
#include <cmath>
#include <cstdio>
#include <span>
#include <vector>

#include "tessera/tessera.hpp"

using tessera::Window;
using Values = std::vector<float>;
constexpr std::size_t inputs = 5, hidden = 7;

// y = v · tanh(W x)
struct Net : tessera::Module {
  void visit(tessera::ModuleVisitor& visitor) override { visitor("weight", weight), visitor("output", output); }

  void forward(Window& window, const Values& x) {
    window.stream().submit([this, &x, w = window.parameter(weight), v = window.parameter(output)] {
      y = 0;
      for (std::size_t i = 0; i < hidden; ++i) {
        float sum = 0;
        for (std::size_t j = 0; j < inputs; ++j) sum += w[i * inputs + j] * x[j];
        h[i] = std::tanh(sum);
        y += v[i] * h[i];
      }
    });
  }
  void backward(Window& window, const Values& x, float dy) {
    window.stream().submit(
        [this, &x, dy, v = window.parameter(output), dw = window.gradient(weight), dv = window.gradient(output)] {
          for (std::size_t i = 0; i < hidden; ++i) {
            dv[i] = dy * h[i];
            for (std::size_t j = 0; j < inputs; ++j) dw[i * inputs + j] = dy * v[i] * (1 - h[i] * h[i]) * x[j];
          }
        });
  }

  // The gradient of x alone: in an evaluation window nothing is trained, and parameters have no gradient to write.
  void input_gradient(Window& window, float dy) {
    window.stream().submit([this, dy, w = window.parameter(weight), v = window.parameter(output)] {
      dx.assign(inputs, 0.0f);
      for (std::size_t k = 0; k < w.size(); ++k) {
        const std::size_t i = k / inputs;
        dx[k % inputs] += dy * v[i] * (1 - h[i] * h[i]) * w[k];
      }
    });
  }

  tessera::Parameter weight{{hidden, inputs}, tessera::Initial::fan_in(inputs)};
  tessera::Parameter output{{hidden}, tessera::Initial::fan_in(hidden)};
  Values h = Values(hidden), dx;
  float y = 0;
};

std::uint64_t weights_of(tessera::FullyShard& model, const Net& net) {
  std::uint64_t weights = 0;
  for (const tessera::Parameter* p : {&net.weight, &net.output})
    for (const float value : model.whole(*p)) weights = weights * 31 + std::bit_cast<std::uint32_t>(value);
  return weights;
}

void train(tessera::World& world, tessera::Strategy strategy) {
  using enum tessera::plan::WindowKind;
  // An evaluation of the second model has a window to go forward and one to go back.
  const tessera::plan::Program there_and_back = {{{0, forward}, {0, backward}}, {{0, evaluate}, {0, evaluate}}};
  Net a, b;
  tessera::FullyShard first(world, {.strategy = strategy, .seed = 1});
  tessera::FullyShard second(world, {.strategy = strategy, .seed = 2, .program = there_and_back});
  first.add(a, "a");
  tessera::Unit& unit = second.add(b, "b");
  first.finalize(tessera::AdamW{.learning_rate = 0.02f});
  second.finalize(tessera::Sgd{.learning_rate = 0.1f, .momentum = 0.9f});
  float apart[2] = {0, 0}, loss[2] = {0, 0};
  Values x(inputs);
  for (int step = 0; step < 200; ++step) {
    const int sample = step * world.size() + world.rank();
    for (std::size_t i = 0; i < inputs; ++i) x[i] = std::sin(float(sample) * 1.7f + float(i * i));
    const float truth = std::tanh(x[0] - x[1]);
    first.forward(a, x);
    second.forward(b, x);
    first.synchronize();
    second.synchronize();
    first.backward(a, x, a.y - truth + 0.5f * (a.y - b.y));
    second.backward(b, x, b.y - truth + 0.5f * (b.y - a.y));
    first.update();
    second.update();
    first.synchronize();  // x is written again
    second.synchronize();
    const float difference = world.average(std::fabs(a.y - b.y), "difference");
    const float error = world.average(std::fabs(a.y - truth) + std::fabs(b.y - truth), "error");
    if (step < 10 || step >= 190) apart[step >= 190] += difference / 10, loss[step >= 190] += error / 10;
  }
  const auto passed_through = [&](const Values& at) {  // b's value, and its gradient in b.dx
    second.evaluate(b, at);
    second.within(unit, evaluate, [&](Window& window) { b.input_gradient(window, 1.0f); });
    second.synchronize();
    return b.y;
  };
  Values nearby = x;
  nearby[0] += 0.01f;
  const float slope = passed_through(nearby) - passed_through(x);
  const std::uint64_t weights = weights_of(first, a) ^ weights_of(second, b) * 3;
  if (world.rank() == 0)
    std::printf("%-6s weights %016llx  error %.4f, then %.4f; apart %.4f, then %.4f; slope %.4f, gradient %.4f\n",
                to_string(strategy).data(), static_cast<unsigned long long>(weights), loss[0], loss[1], apart[0],
                apart[1], slope * 100, b.dx[0]);
}

int main(int argc, char** argv) {
  const char* about = "Two models learn from the samples and from each other; the same weights under every strategy.";
  return tessera::run(argc, argv, about, [](tessera::World& world) {
    for (const tessera::Strategy strategy : tessera::flat_strategies) train(world, strategy);
  });
}
